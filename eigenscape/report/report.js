// Draws the figures, and draws them again when the theme, the width or the medium changes.
"use strict";
(() => {
  const { figures, palettes } = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const paper = window.matchMedia("print");
  const coarse = window.matchMedia("(pointer: coarse)").matches;
  let chosen = null; // what the reader asked for; otherwise the system decides
  let printing = false;

  const theme = () => (printing ? "light" : chosen || (dark.matches ? "dark" : "light"));

  // "@role" and "@role/alpha" become colours of the present theme.
  const paint = (value, palette) => {
    if (Array.isArray(value)) return value.map((item) => paint(item, palette));
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, paint(v, palette)]));
    if (typeof value !== "string" || value[0] !== "@") return value;
    const [name, alpha] = value.slice(1).split("/");
    const hex = palette[name];
    if (!hex) return value;
    if (!alpha) return hex;
    const part = (i) => parseInt(hex.slice(i, i + 2), 16);
    return `rgba(${part(1)},${part(3)},${part(5)},${alpha})`;
  };

  const axis = (own, palette) => ({
    gridcolor: palette.grid,
    linecolor: palette.muted,
    tickcolor: palette.muted,
    zerolinecolor: palette.grid,
    zerolinewidth: 1,
    showline: !own.tickvals,
    ticks: own.tickvals ? "" : "outside",
    ticklen: 4,
    automargin: true,
    exponentformat: "power",
    ...own,
    title: { standoff: 8, font: { size: 12 }, ...(own.title || {}) },
    tickfont: { size: own.tickvals && own.tickvals.length > 30 ? 9 : 11 },
  });

  const layout = (spec, div, palette) => {
    const own = paint(spec.layout, palette);
    const heat = spec.data.some((trace) => trace.type === "heatmap");
    // A map of few layers is small on any screen.
    const narrow = heat ? window.innerWidth < 480 : div.clientWidth < 480;
    const result = {
      ...own,
      height: spec.height,
      margin: { l: 52, r: heat ? 8 : 14, t: 10, b: 44 },
      paper_bgcolor: palette.paper,
      plot_bgcolor: palette.paper,
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: palette.ink },
      hoverlabel: {
        bgcolor: palette.paper,
        bordercolor: palette.muted,
        font: { color: palette.ink, size: 12 },
        align: "left",
        namelength: -1,
      },
      hovermode: "closest",
      dragmode: coarse ? false : "zoom",
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11 } },
      bargap: 0,
      xaxis: axis(own.xaxis, palette),
      yaxis: axis(own.yaxis, palette),
    };
    const names = heat && own.xaxis.tickvals ? own.xaxis.tickvals.length : 0;
    if (names && div.clientWidth / names < 11) result.xaxis.showticklabels = false;
    if (names && narrow) {
      result.height = Math.min(spec.height, Math.round(1.15 * div.clientWidth) + 70);
      result.yaxis.tickfont.size = names > 20 ? 6 : 9;
      result.margin.l = 8;
    }
    // The browser lays a page out on paper after this script has run, so the width is said here.
    if (printing) result.width = div.closest(".one") ? Math.min(640, spec.width || 640) : 310;
    div.style.height = `${result.height}px`;
    return result;
  };

  const draw = (div) => {
    const figure = div.closest("figure");
    const spec = figures[figure.dataset.figure][Number(div.dataset.panel)];
    const palette = palettes[theme()];
    const data = paint(spec.data, palette);
    if (window.innerWidth < 480)
      for (const trace of data)
        if (trace.colorbar)
          Object.assign(trace.colorbar, { orientation: "h", y: 1.02, yanchor: "bottom", len: 1 },
            { title: { ...trace.colorbar.title, side: "top" } });
    const pick = figure.querySelector("select[data-pick]");
    if (pick && pick.value)
      for (const trace of data) {
        if (trace.meta === undefined || trace.meta === null) continue;
        trace.opacity = trace.meta === pick.value ? 1 : 0.08;
        if (trace.meta !== pick.value) trace.hoverinfo = "skip", delete trace.hovertemplate;
      }
    return Plotly.react(div, data, layout(spec, div, palette), {
      responsive: true,
      displaylogo: false,
      staticPlot: printing,
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
      toImageButtonOptions: { format: "svg", filename: figure.dataset.figure },
    });
  };

  const plots = [...document.querySelectorAll(".plot")];
  const drawAll = () => Promise.all(plots.map(draw));

  // Panels that share their horizontal axis are zoomed together.
  for (const figure of document.querySelectorAll("figure[data-linked]")) {
    const panels = [...figure.querySelectorAll(".plot")];
    let busy = false;
    const follow = (source) => (change) => {
      const low = change["xaxis.range[0]"], high = change["xaxis.range[1]"];
      const reset = change["xaxis.autorange"];
      if (busy || (low === undefined && !reset)) return;
      busy = true;
      const update = reset ? { "xaxis.autorange": true } : { "xaxis.range": [low, high] };
      Promise.all(panels.filter((p) => p !== source).map((p) => Plotly.relayout(p, update))).then(
        () => { busy = false; });
    };
    figure.linkUp = () => panels.forEach((panel) => panel.on("plotly_relayout", follow(panel)));
  }

  const setTheme = () => {
    root.dataset.theme = theme();
    button.textContent = theme() === "dark" ? "Light" : "Dark";
    return drawAll();
  };

  button.addEventListener("click", () => {
    chosen = theme() === "dark" ? "light" : "dark";
    setTheme();
  });
  dark.addEventListener("change", setTheme);
  document.addEventListener("change", (event) => {
    if (!event.target.matches("select[data-pick]")) return;
    event.target.closest("figure").querySelectorAll(".plot").forEach(draw);
  });

  const print = (on) => {
    if (printing === on) return;
    printing = on;
    setTheme();
  };
  paper.addEventListener("change", (event) => print(event.matches));
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));

  setTheme().then(() => {
    document.querySelectorAll("figure[data-linked]").forEach((figure) => figure.linkUp());
    root.dataset.drawn = "yes";
  });
})();
