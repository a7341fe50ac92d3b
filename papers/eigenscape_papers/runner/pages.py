"""The page of a study's result, and what is said on that of a training."""

from dataclasses import replace

from eigenscape.records import Picture, seconds, short
from eigenscape.report import Card, Page, Section, Sheet, page_of
from eigenscape_papers.ensemble import Training
from eigenscape_papers.runner.study_result import StudyResult


@page_of.register
def _(result: StudyResult) -> Page:
    verdicts = [finding.verdict for finding in result.findings]
    cards = [Card(word, short(verdicts.count(word))) for word in dict.fromkeys(sorted(verdicts))]
    wall = f"{seconds(result.seconds or None)} on {result.device}"
    claims = {name: list(column) for name, column in result.columns().items()}
    sheets = [Sheet("claims", "Claims of the paper", claims)] if result.findings else []
    sheets += [
        Sheet(sheet.name, sheet.title, {name: list(c) for name, c in sheet.columns.items()})
        for sheet in result.sheets
    ]
    return Page(
        title=result.title,
        kicker=f"{result.paper}, {result.where}",
        facts={name: str(value) for name, value in result.settings.items()},
        findings=[result.summary, *([] if result.status else [result.status.text]), *result.notes],
        cards=[*cards, Card("scale", result.scale)],
        sections=[Section("Figures", [_worded(p, wall) for p in result.figures])],
        sheets=sheets,
    )


def _worded(picture: Picture, wall: str) -> Picture:
    shows = picture.shows or picture.title
    return replace(picture, shows=shows, cost=wall, sure="; ".join(picture.notes))


@page_of.register
def _(training: Training) -> Page:
    cards = [Card("epochs", short(training.epochs_done)), Card("seeds", short(len(training.seeds)))]
    for name in ("train_loss", "train_accuracy", "test_loss", "test_accuracy"):
        curve = getattr(training, name)
        if curve is not None and curve.numel():
            known = curve[~curve.isnan().any(1)] if curve.ndim == 2 else curve
            if len(known):
                spread = f"{short(float(known[-1].min()), 3)} to {short(float(known[-1].max()), 3)}"
                note = spread if len(training.seeds) > 1 else ""
                value = short(float(known[-1].mean()))
                cards.append(Card(f"last {name.replace('_', ' ')}", value, note))
    shows = "Loss and accuracy after each epoch, one curve a seed."
    wall = f"{seconds(training.seconds)} on {training.device}"
    status = training.status
    pictures = [
        replace(picture, shows=shows, cost=wall, sure=status.text, converged=bool(status))
        for picture in training.pictures()
    ]
    return Page(
        "Training",
        "Training report",
        {"recipe": training.recipe},
        [training.status.text],
        cards,
        [Section("Course of the training", pictures)],
    )
