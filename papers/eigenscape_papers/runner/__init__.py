"""What all studies share: networks, measuring, claims, records, the page."""

from eigenscape_papers.runner import pages as pages
from eigenscape_papers.runner.cast import Cast as Cast
from eigenscape_papers.runner.cast import Own as Own
from eigenscape_papers.runner.claims import KINDS as KINDS
from eigenscape_papers.runner.claims import SCALES as SCALES
from eigenscape_papers.runner.claims import STATUSES as STATUSES
from eigenscape_papers.runner.claims import Claim as Claim
from eigenscape_papers.runner.claims import Finding as Finding
from eigenscape_papers.runner.claims import Measured as Measured
from eigenscape_papers.runner.claims import claims_of as claims_of
from eigenscape_papers.runner.claims import counts as counts
from eigenscape_papers.runner.claims import letters as letters
from eigenscape_papers.runner.claims import parse_claims as parse_claims
from eigenscape_papers.runner.claims import printed as printed
from eigenscape_papers.runner.claims import slug as slug
from eigenscape_papers.runner.claims import summary as summary
from eigenscape_papers.runner.draw import SERIES as SERIES
from eigenscape_papers.runner.draw import curve as curve
from eigenscape_papers.runner.draw import dotted as dotted
from eigenscape_papers.runner.draw import indices as indices
from eigenscape_papers.runner.draw import mean_and_band as mean_and_band
from eigenscape_papers.runner.draw import overlaps_panel as overlaps_panel
from eigenscape_papers.runner.draw import rounded as rounded
from eigenscape_papers.runner.draw import spectrum as spectrum
from eigenscape_papers.runner.draw import stops as stops
from eigenscape_papers.runner.draw import sweep_panel as sweep_panel
from eigenscape_papers.runner.draw import values_panel as values_panel
from eigenscape_papers.runner.judging import Judged as Judged
from eigenscape_papers.runner.judging import judge_stored as judge_stored
from eigenscape_papers.runner.looks import by_label as by_label
from eigenscape_papers.runner.looks import finite as finite
from eigenscape_papers.runner.looks import of_each_network as of_each_network
from eigenscape_papers.runner.looks import over_networks as over_networks
from eigenscape_papers.runner.looks import worst as worst
from eigenscape_papers.runner.portrait import Portrait as Portrait
from eigenscape_papers.runner.portrait import last_layer as last_layer
from eigenscape_papers.runner.portrait import layer_obstacles as layer_obstacles
from eigenscape_papers.runner.portrait import left_out as left_out
from eigenscape_papers.runner.portrait import matrix_layers as matrix_layers
from eigenscape_papers.runner.portrait import pairs_around_outputs as pairs_around_outputs
from eigenscape_papers.runner.portrait import take_portrait as take_portrait
from eigenscape_papers.runner.results import all_findings as all_findings
from eigenscape_papers.runner.results import read_result as read_result
from eigenscape_papers.runner.results import read_results as read_results
from eigenscape_papers.runner.results import results_folder as results_folder
from eigenscape_papers.runner.results import to_json as to_json
from eigenscape_papers.runner.results import write_result as write_result
from eigenscape_papers.runner.scoreboard import write_pages as write_pages
from eigenscape_papers.runner.study import Outcome as Outcome
from eigenscape_papers.runner.study import Setting as Setting
from eigenscape_papers.runner.study import Study as Study
from eigenscape_papers.runner.study import of_each_cast as of_each_cast
from eigenscape_papers.runner.study import run_study as run_study
from eigenscape_papers.runner.study_result import Sheet as Sheet
from eigenscape_papers.runner.study_result import StudyResult as StudyResult
from eigenscape_papers.runner.tables import sheet as sheet
from eigenscape_papers.runner.words import picture as picture
from eigenscape_papers.runner.words import table as table
from eigenscape_papers.runner.workshop import Networks as Networks
from eigenscape_papers.runner.workshop import Workshop as Workshop
from eigenscape_papers.runner.workshop import counted as counted
from eigenscape_papers.runner.workshop import device_name as device_name

__all__ = [
    "SCALES",
    "STATUSES",
    "Cast",
    "Claim",
    "Finding",
    "Measured",
    "Networks",
    "Outcome",
    "Own",
    "Setting",
    "Sheet",
    "Study",
    "StudyResult",
    "Workshop",
    "all_findings",
    "read_result",
    "read_results",
    "results_folder",
    "run_study",
    "to_json",
    "write_pages",
    "write_result",
]
