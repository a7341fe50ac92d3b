"""What every computation returns and how it is stored: records, eigenpairs, pictures as data."""

from eigenscape.records.axes import SERIES as SERIES
from eigenscape.records.axes import dots as dots
from eigenscape.records.axes import indices as indices
from eigenscape.records.axes import layer_axis as layer_axis
from eigenscape.records.axes import places as places
from eigenscape.records.axes import share_axis as share_axis
from eigenscape.records.axes import shorten as shorten
from eigenscape.records.axes import table_of as table_of
from eigenscape.records.axes import value_axis as value_axis
from eigenscape.records.checkpoint import Checkpoint as Checkpoint
from eigenscape.records.checkpoint import Key as Key
from eigenscape.records.eigenpairs import EigenPairs as EigenPairs
from eigenscape.records.eigenpairs import pair_hover as pair_hover
from eigenscape.records.files import crc as crc
from eigenscape.records.files import digest as digest
from eigenscape.records.files import read_tensors as read_tensors
from eigenscape.records.files import sha256 as sha256
from eigenscape.records.files import tensor_text as tensor_text
from eigenscape.records.files import text_tensor as text_tensor
from eigenscape.records.files import write_bytes as write_bytes
from eigenscape.records.files import write_tensors as write_tensors
from eigenscape.records.files import write_with as write_with
from eigenscape.records.numbers import colour_ticks as colour_ticks
from eigenscape.records.numbers import seconds as seconds
from eigenscape.records.numbers import short as short
from eigenscape.records.numbers import size as size
from eigenscape.records.numbers import with_error as with_error
from eigenscape.records.pictures import Axis as Axis
from eigenscape.records.pictures import Band as Band
from eigenscape.records.pictures import Bars as Bars
from eigenscape.records.pictures import Colour as Colour
from eigenscape.records.pictures import Heat as Heat
from eigenscape.records.pictures import Line as Line
from eigenscape.records.pictures import Mark as Mark
from eigenscape.records.pictures import Note as Note
from eigenscape.records.pictures import Panel as Panel
from eigenscape.records.pictures import Picture as Picture
from eigenscape.records.pictures import Points as Points
from eigenscape.records.pictures import Raster as Raster
from eigenscape.records.pictures import Rule as Rule
from eigenscape.records.pictures import Table as Table
from eigenscape.records.pictures import ends as ends
from eigenscape.records.pictures import numbers as numbers
from eigenscape.records.pictures import raster_limits as raster_limits
from eigenscape.records.progress import Progress as Progress
from eigenscape.records.progress import ProgressCallback as ProgressCallback
from eigenscape.records.progress import Ticker as Ticker
from eigenscape.records.record import Columns as Columns
from eigenscape.records.record import Record as Record
from eigenscape.records.record import Status as Status
from eigenscape.records.record import text_table as text_table
from eigenscape.records.self_test import BEYOND as BEYOND
from eigenscape.records.self_test import Check as Check
from eigenscape.records.self_test import SelfTest as SelfTest
from eigenscape.records.stored import pack as pack
from eigenscape.records.stored import storable as storable
from eigenscape.records.stored import unpack as unpack

__all__ = [
    "Axis",
    "Band",
    "Bars",
    "Check",
    "EigenPairs",
    "Heat",
    "Line",
    "Mark",
    "Note",
    "Panel",
    "Picture",
    "Points",
    "Progress",
    "Raster",
    "Record",
    "Rule",
    "SelfTest",
    "Status",
    "numbers",
    "pack",
    "storable",
    "text_table",
    "unpack",
]
