"""Model files of others: read as they are meant, or refused with the line and the reason; never read as something else."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coralopt.errors import OptionError, SolverError, UnsupportedError
from coralopt.solving import MilpMatrix, read_model, solve_matrix

RunCli = Callable[..., Any]

INF = float("inf")


def read(folder: Path, text: str, suffix: str = "lp", allow: tuple[str, ...] = ()) -> MilpMatrix:
    path = folder / f"model.{suffix}"
    path.write_text(text)
    return read_model(path, allow)


def lp(rows: str = "c: x + y >= 2", objective: str = "obj: x + 2 y", rest: str = "", sense: str = "Minimize") -> str:
    return f"{sense}\n {objective}\nSubject To\n {rows}\n{rest}\nEnd\n"


def mps(
    columns: str = " x obj 1 c 1\n y obj 2 c 1",
    rest: str = "RHS\n RHS c 2",
    rows: str = " N obj\n G c",
    head: str = "NAME test",
) -> str:
    return f"{head}\nROWS\n{rows}\nCOLUMNS\n{columns}\n{rest}\nENDATA\n"


# ---- LP: what is read, and how -------------------------------------------------------------------------------------------


def test_repeated_terms_add_up(tmp_path: Path) -> None:
    """``x + x`` is 2 x, in the objective and in rows; HiGHS 1.15 reads x."""
    model = read(tmp_path, lp("c: x + y + 3 x - y >= 2", "obj: x + x + 2 y"))
    assert model.c.tolist() == [2.0, 2.0]
    assert model.a.toarray().tolist() == [[4.0, 0.0]]


@pytest.mark.parametrize("word", ["Maximise", "MAXIMIZE", "max", "maximum", "Maximize"])
def test_every_spelling_of_the_sense(tmp_path: Path, word: str) -> None:
    assert read(tmp_path, lp("c: x + y <= 4", sense=word)).maximize


@pytest.mark.parametrize(
    ("operator", "sides"),
    [(">", (2, INF)), (">=", (2, INF)), ("=>", (2, INF)), ("<", (-INF, 2)), ("=<", (-INF, 2)), ("=", (2, 2))],
)
def test_every_operator(tmp_path: Path, operator: str, sides: tuple[float, float]) -> None:
    """A strict sign is the same as the other, by the custom of the format."""
    model = read(tmp_path, lp(f"c: x + y {operator} 2"))
    assert (model.row_lower[0], model.row_upper[0]) == sides


def test_rows_of_every_shape(tmp_path: Path) -> None:
    """Both sides, constants, signs, numbers beside names, several lines, comments, rows without names."""
    rows = """c1: -2 <= x + y <= 8
 8 >= x - y
 >= 1
 R1: - -3x+ 2.5e0 y -1 >= 4  \\ a comment
 2 x(1,2) + .5 z[3] = -1
 3 = x
 c9: x >= -1e-10"""
    model = read(tmp_path, lp(rows))
    assert list(model.row_names) == ["c1", "R2", "R1", "R4", "R5", "c9"]
    assert list(model.column_names) == ["x", "y", "x(1,2)", "z[3]"]
    assert model.row_lower.tolist() == [-2, 1, 5, -1, 3, -1e-10]
    assert model.row_upper.tolist() == [8, 8, INF, -1, 3, INF]
    assert model.a.toarray()[2].tolist() == [3, 2.5, 0, 0]
    assert model.a.toarray()[3].tolist() == [0, 0, 2, 0.5]


def test_small_numbers_survive(tmp_path: Path) -> None:
    """A coefficient of 1e-10 is not 0."""
    assert read(tmp_path, lp("c: x + 1e-10 y >= 2")).a.toarray().tolist() == [[1.0, 1e-10]]
    assert read(tmp_path, mps(" x obj 1 c 1e-12"), "mps").a.toarray().tolist() == [[1e-12]]


def test_bounds_of_every_shape(tmp_path: Path) -> None:
    rest = """Bounds
 -1 <= a <= 4
 b <= 5
 b >= -3
 c free
 d = 2.5
 -inf <= e <= 6
 7 >= f >= 1
 g <= 1e30
 -Infinity <= h
 Generals
 a b
 Binaries
 f1"""
    model = read(tmp_path, lp("r: a+b+c+d+e+f+g+h+f1 >= 0", "0 a", rest))
    bounds = {n: (low, up) for n, low, up in zip(model.column_names, model.lower, model.upper, strict=True)}
    assert bounds["a"] == (-1, 4)
    assert bounds["b"] == (-3, 5)
    assert bounds["c"] == (-INF, INF)
    assert bounds["d"] == (2.5, 2.5)
    assert bounds["e"] == (-INF, 6)
    assert bounds["f"] == (1, 7)
    assert bounds["g"] == (0, INF)
    assert bounds["h"] == (-INF, INF)
    assert bounds["f1"] == (0, 1)
    assert [n for n, whole in zip(model.column_names, model.integer, strict=True) if whole] == ["a", "b", "f1"]


def test_empty_sections_are_nothing(tmp_path: Path) -> None:
    """HiGHS ends every file with an empty section of semi-continuous columns."""
    assert read(tmp_path, lp(rest="bounds\nbin\ngen\nsemi")).shape == (1, 2)


def test_objective_constants_and_none(tmp_path: Path) -> None:
    assert read(tmp_path, lp(objective="obj: x + 5 - 2")).offset == 3
    assert read(tmp_path, lp(objective="obj:")).c.tolist() == [0, 0]


LP_REFUSED = {
    "digits of another script": (lp("c: \u0663 x + y >= 2"), "not supported"),
    "quadratic objective": (lp(objective="obj: x + [ x ^ 2 ]"), "line 2.*] / 2"),
    "half of nothing": (lp(objective="obj: x / 2"), "line 2.*division"),
    "product without bracket": (lp(objective="obj: x * y"), "line 2.*products"),
    "cube": (lp(objective="obj: [ x ^ 3 ] / 2"), "line 2.*x \\^2"),
    "linear term in brackets": (lp(objective="obj: [ x ^ 2 + y ] / 2"), "line 2.*quadratic terms are"),
    "two brackets": (lp(objective="obj: [ x ^ 2 ] / 2 + [ y ^ 2 ] / 2"), "line 2.*two brackets"),
    "bracket without end": (lp(objective="obj: [ x ^ 2"), "line [23]"),
    "quadratic row": (lp("c: x + [ x * y ] >= 2"), "line 4.*quadratic"),
    "square": (lp("c: x^2 >= 2"), "line 4.*powers"),
    "square sign": (lp("c: x\u00b2 >= 2"), "line 4.*unknown sign"),
    "product": (lp("c: 3 * x >= 2"), "line 4.*products"),
    "division": (lp("c: x / 2 >= 2"), "line 4.*division"),
    "indicator": (lp("c: y = 1 -> x >= 2"), "not binary"),
    "indicator of 2": (lp("c: y = 2 -> x >= 2", rest="Binary\n y"), "line 4.*0 or 1"),
    "indicator above": (lp("c: y >= 1 -> x >= 2", rest="Binary\n y"), "line 4.*indicator"),
    "indicator either way": (lp("c: y = 1 <-> x >= 2", rest="Binary\n y"), "line 4"),
    "arrow in the objective": (lp(objective="obj: x = 1 -> y"), "line 2.*indicators"),
    "bracket": (lp("c: 2 (x + y) >= 2"), "line 4"),
    "sos": (lp(rest="SOS1\n s: x:1 y:2"), "line 5.*SOS1"),
    "sos of a third kind": (lp(rest="SOS\n s: S3:: x:1 y:2"), "line 6.*S1"),
    "sos with equal weights": (lp(rest="SOS\n s: S1:: x:1 y:1"), "line 6.*twice"),
    "sos of nobody": (lp(rest="SOS\n s: S1:: z:1 y:2"), "line 6.*'z'"),
    "sos with a comma": (lp(rest="SOS\n s: S1:: x:1, y:2"), "line 6"),
    "semi-continuous": (lp(rest="Bounds\n x >= -2\nSemi-Continuous\n x"), "line 6.*semi-continuous"),
    "semi-continuous in one word": (lp(rest="semicontinuous\n x"), "line 5.*semicontinuous"),
    "semi-continuous in two": (lp(rest="Semi Continuous\n x"), "line 5.*Semi Continuous"),
    "indicator backwards": (lp("c: x >= 2 <- y = 1", rest="Binary\n y"), "line 4"),
    "semi-continuous free": (lp(rest="Bounds\n x free\nSemis\n x"), "line 6.*semi-continuous"),
    "general constraints": (lp(rest="General Constraints\n g: y = MAX ( x , 1 )"), "line 5.*General Constraints"),
    "lazy": (lp(rest="Lazy Constraints\n c2: x >= 1"), "line 5.*Lazy"),
    "user cuts": (lp(rest="User Cuts\n c2: x >= 1"), "line 5.*User Cuts"),
    "pwlobj": (lp(rest="PWLObj\n x: (1, 1)"), "line 5.*PWLObj"),
    "no end": ("Minimize\n x\nSubject To\n c: x >= 2\n", "without End"),
    "cut off": ("Minimize\n x\nSubject To\n c: x +", "term is missing|without End"),
    "after the end": (lp() + "c2: x >= 9\n", "line 7.*more after End"),
    "lp_solve": ("max: 3x+2y;\nc1: x+y<=4;\n", "line 1"),
    "no objective word": ("this is no model", "no LP or MPS file"),
    "empty": ("", "no LP or MPS file"),
    "columns on the right": (lp("c: x >= 2 y"), "line 4.*columns stand on the left"),
    "two rows a line": (lp("c: x >= 2 y >= 3"), "line 4"),
    "no number": (lp("c: x >="), "number of a row"),
    "infinite side": (lp("c: x + y <= 1e30"), "line 4.*infinite"),
    "huge coefficient": (lp("c: 1e25 x + y <= 1"), "line 4.*infinite"),
    "two equal rows": (lp("c: x >= 2\n c: y >= 2"), "line 5.*'c' is there already"),
    "missing sign": (lp("c: x y >= 2"), "line 4"),
    "three numbers": (lp("c: 2 3 x >= 2"), "line 4"),
    "opposite signs": (lp("c: 1 <= x >= 2"), "line 4.*two sides"),
    "exponent or name": (lp("c: 2 e1 + y >= 2"), "line 4.*number or a product"),
    "exponent and name": (lp("c: 2e1x + y >= 2"), "line 4.*number or a product"),
    "word as a name": (lp("c: free + y >= 2"), "line 4.*word of the format"),
    "second rows": (lp("c: x >= 2\nsubject to\n d: y >= 1"), "line 5.*once"),
    "second objective": (lp("c: x >= 2\nmaximize\n y"), "line 5.*no objective belongs"),
    "unknown bound": (lp(rest="Bounds\n z <= 4"), "line 6.*'z' is in no row"),
    "unknown integer": (lp(rest="General\n z"), "line 6.*'z' is in no row"),
    "negative upper": (lp(rest="Bounds\n x <= -4"), "line 6.*negative upper"),
    "huge bound": (lp(rest="Bounds\n x <= 1e22"), "line 6.*infinite for some"),
    "lower infinity": (lp(rest="Bounds\n x >= 1e30"), "line 6.*no number lies beyond"),
    "two bounds": (lp(rest="Bounds\n x <= 4\n x <= 5"), "line 7.*upper bound 4.* already"),
    "bound of a sum": (lp(rest="Bounds\n 2 x <= 4"), "line 6"),
    "binary with bounds": (lp(rest="Bounds\n x <= 4\nBinary\n x"), "line 8.*binary"),
    "text behind a comment": (lp("\\* old *\\ c: x >= 2"), "line 4.*comment"),
    "overflow": (lp("c: 1e999 x >= 2"), "line 4.*range"),
    "underflow": (lp("c: 1e-999 x >= 2"), "line 4.*range"),
}


@pytest.mark.parametrize("name", LP_REFUSED)
def test_lp_files_that_are_refused(name: str, tmp_path: Path) -> None:
    text, reason = LP_REFUSED[name]
    with pytest.raises(SolverError, match=reason):
        read(tmp_path, text)


# ---- MPS -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "maximize"),
    [
        ("OBJSENSE\n    MAX", True),
        ("OBJSENSE MAXIMIZE", True),
        ("OBJSENSE\n MAXIMISE", True),
        ("OBJSENSE MIN", False),
        ("OBJSENSE\n    minimize", False),
    ],
)
def test_objsense_in_every_form(tmp_path: Path, section: str, maximize: bool) -> None:
    """On its own line or behind the word: MAXIMIZE behind it was minimised."""
    assert read(tmp_path, mps(head=f"NAME test\n{section}"), "mps").maximize is maximize


def test_ranges_by_the_rule_of_each_kind(tmp_path: Path) -> None:
    text = mps(
        " x obj 1 l 1\n x g 1 e 1\n x f 1",
        "RHS\n RHS l 4 g 4\n RHS e 4 f 4\nRANGES\n RNG l 1 g 1\n RNG e 1 f -1",
        " N obj\n L l\n G g\n E e\n E f",
    )
    model = read(tmp_path, text, "mps")
    assert model.row_lower.tolist() == [3, 4, 4, 3]
    assert model.row_upper.tolist() == [4, 5, 5, 4]


def test_bounds_of_every_type(tmp_path: Path) -> None:
    """One of each, and which sides it leaves as they were."""
    columns = "\n".join(f" {name} obj 1" for name in "abcdefghi")
    rest = """BOUNDS
 LO BND a -1
 UP BND a 4
 FX BND b 2
 FR BND c
 MI BND d
 MI BND e
 UP BND e -3
 BV BND f
 LI BND g -2
 UI BND h 9
 PL BND i"""
    model = read(tmp_path, mps(columns, rest, " N obj"), "mps")
    assert model.lower.tolist() == [-1, 2, -INF, -INF, -INF, 0, -2, 0, 0]
    assert model.upper.tolist() == [4, 2, INF, INF, -3, 1, INF, 9, INF]
    assert model.integer.tolist() == [False] * 5 + [True] * 3 + [False]


def test_right_hand_side_of_the_objective(tmp_path: Path) -> None:
    """It is minus the constant."""
    assert read(tmp_path, mps(rest="RHS\n RHS obj -10 c 2"), "mps").offset == 10


def test_fixed_format_without_names_of_vectors(tmp_path: Path) -> None:
    """Blank names of the right-hand side and of the bounds, and free rows."""
    text = """* a comment
NAME          AFIRO
ROWS
 N  COST
 G  LIM1
 N  OTHER
COLUMNS
    X1        COST               1.0   LIM1               1.0
    X1        OTHER              7.0
RHS
              LIM1               2.0
BOUNDS
 UP           X1                 4.0
ENDATA
"""
    model = read(tmp_path, text, "mps")
    assert (model.c.tolist(), model.row_lower.tolist(), model.upper.tolist()) == ([1], [2], [4])


INTEGER = " M 'MARKER' 'INTORG'\n x obj 1 c 1\n M 'MARKER' 'INTEND'"
MPS_REFUSED = {
    "digits of another script": (mps(" x obj 1 c \u0663"), "is not a number"),
    "quadratic objective": (mps(rest="QUADOBJ\n x y 1\n y x 1"), "line 10.*triangle"),
    "quadratic entry twice": (mps(rest="QMATRIX\n x x 1\n x x 1"), "line 10.*already"),
    "quadratic matrix": (mps(rest="QMATRIX\n x y 1\n y x 2"), "not symmetric"),
    "half a quadratic matrix": (mps(rest="QMATRIX\n x y 1"), "not symmetric"),
    "quadratic twice": (mps(rest="QMATRIX\n x x 1\nQUADOBJ\n x x 1"), "twice"),
    "quadratic of nobody": (mps(rest="QUADOBJ\n x z 1"), "line 9.*'z'"),
    "quadratic row": (mps(rest="QCMATRIX c\n x x 1"), "line 8.*QCMATRIX"),
    "quadratic section": (mps(rest="QSECTION obj\n x x 1"), "line 8.*QSECTION"),
    "cone": (mps(rest="CSECTION k 0.0 QUAD\n x\n y"), "line 8.*CSECTION"),
    "sos": (mps(rest="SOS\n S3 s\n x 1\n y 2"), "line 9.*S1"),
    "sos member without a set": (mps(rest="SOS\n x 1\n y 2"), "line 9.*S1"),
    "sos section of one kind": (mps(rest="SOS1\n s x 1"), "line 8.*SOS1"),
    "sets": (mps(rest="SETS\n S1 s"), "line 8.*SETS"),
    "indicators": (mps(rest="INDICATORS\n IF c x 1"), "line .*not binary"),
    "indicator of a range": (mps(rest="RANGES\n R c 2\nBOUNDS\n BV BND x\nINDICATORS\n IF c x 1"), "'c'.*range"),
    "indicator of 2": (mps(rest="BOUNDS\n BV BND x\nINDICATORS\n IF c x 2"), "line 11.*0 or 1"),
    "indicator of the objective": (mps(rest="BOUNDS\n BV BND x\nINDICATORS\n IF obj x 1"), "line 11.*IF"),
    "lazy": (mps(rest="LAZYCONS\n G d"), "line 8.*LAZYCONS"),
    "semi-continuous": (mps(rest="BOUNDS\n LO BND x -1\n SC BND x 4"), "line 10.*semi-continuous"),
    "semi-continuous to 0": (mps(rest="BOUNDS\n SC BND x 0"), "line 9.*semi-continuous"),
    "semi-integer": (mps(rest="BOUNDS\n SI BND x"), "line 9"),
    "sos marker": (mps(" S 'MARKER' 'SOSORG'\n x obj 1"), "line 6.*SOSORG"),
    "undefined row": (mps(" x obj 1 d 1"), "line 6.*'d' is not in ROWS"),
    "undefined row of a side": (mps(rest="RHS\n RHS d 1"), "line 9.*'d' is not in ROWS"),
    "undefined column": (mps(rest="BOUNDS\n UP BND z 1"), "line 9.*'z' is in no row"),
    "two entries": (mps(" x obj 1 c 1\n x c 2"), "line 7.*two entries"),
    "two entries a line": (mps(" x c 1 c 1"), "line 6.*two entries"),
    "column again": (mps(" x obj 1\n y obj 1\n x c 1"), "line 8.*was there before"),
    "two rows": (mps(rows=" N obj\n G c\n L c"), "line 5.*there already"),
    "two sides": (mps(rest="RHS\n RHS c 1\n RHS c 2"), "line 10.*two numbers"),
    "two vectors": (mps(rest="RHS\n RHS1 c 1\n RHS2 obj 2"), "line 10.*two vectors"),
    "two upper bounds": (mps(rest="BOUNDS\n UP BND x 1\n UP BND x 2"), "line 10.*already"),
    "names with spaces": (mps(" my column obj 1"), "line 6.*4 words"),
    "rows with spaces": (mps(rows=" N obj\n G my row"), "line 4.*without spaces"),
    "no number": (mps(" x obj one"), "line 6.*'one' is not a number"),
    "Fortran exponent": (mps(" x obj 1d5"), "line 6.*not a number"),
    "underscore": (mps(" x obj 1_0"), "line 6.*not a number"),
    "not a number": (mps(" x obj nan"), "line 6.*not a number"),
    "infinite coefficient": (mps(" x obj 1e31"), "line 6.*infinite"),
    "infinite side": (mps(rest="RHS\n RHS c 1e30"), "line 9.*infinite"),
    "integer without upper bound": (mps(INTEGER), "line 7.*no upper bound"),
    "open marker": (mps(" M 'MARKER' 'INTORG'\n x obj 1"), "line 8.*INTEND"),
    "closed twice": (mps(" M 'MARKER' 'INTEND'\n x obj 1"), "line 6.*INTEND"),
    "lower 0 and negative upper": (mps(rest="BOUNDS\n LO BND x 0\n UP BND x -1"), "line 10.*lower bound 0"),
    "huge bound": (mps(rest="BOUNDS\n UP BND x 1e20"), "line 9.*infinite for some"),
    "value of a free column": (mps(rest="BOUNDS\n FR BND x 5"), "line 9.*takes none"),
    "no value": (mps(rest="BOUNDS\n UP BND x"), "line 9"),
    "range of the objective": (mps(rest="RANGES\n RNG obj 5"), "line 9.*no range"),
    "no sense": (mps(head="NAME t\nOBJSENSE"), "line 3.*neither MAX nor MIN"),
    "negative upper bound alone": (mps(rest="BOUNDS\n UP B x -1"), "no lower bound and the upper bound -1"),
    "unknown sense": (mps(head="NAME t\nOBJSENSE\n LARGEST"), "line 3.*sense"),
    "two senses": (mps(head="NAME t\nOBJSENSE\n MAX\n MIN"), "line 4.*sense"),
    "unknown kind of row": (mps(rows=" N obj\n D c"), "line 4.*no row"),
    "no objective": (mps(" x c 1", rows=" G c"), "no objective"),
    "no end": (mps()[:-8], "without ENDATA"),
    "cut off": (mps()[:42], "line 6.*2 words"),
    "after the end": (mps() + "RHS\n RHS c 5\n", "line 11.*after ENDATA"),
    "section twice": (mps(rest="RHS\n RHS c 2\nRHS\n RHS c 3"), "line 10.*twice"),
    "section too early": ("NAME t\nRHS\n RHS c 1\nENDATA\n", "line 2.*before COLUMNS"),
    "data without indent": (mps("x obj 1"), "line 6.*not supported"),
    "a dollar": (mps(" x obj 1 $ c 1"), "line 6.*comment"),
    "no MPS": ("Minimize\n x\nEnd\n", "line 1.*'Minimize' is not supported"),
}


@pytest.mark.parametrize("name", MPS_REFUSED)
def test_mps_files_that_are_refused(name: str, tmp_path: Path) -> None:
    text, reason = MPS_REFUSED[name]
    with pytest.raises(SolverError, match=reason):
        read(tmp_path, text, "mps")


def test_what_is_allowed_is_read_as_it_says(tmp_path: Path) -> None:
    """Warnings are errors unless they are allowed, one by one."""
    assert read(tmp_path, mps(INTEGER), "mps", ("integer-bounds",)).upper.tolist() == [INF]
    assert read(tmp_path, lp(rest="Bounds\n x <= -4"), "lp", ("negative-upper",)).lower[0] == -INF
    assert read(tmp_path, mps(rest="BOUNDS\n UP BND x 1e25"), "mps", ("huge-figures",)).upper[0] == INF
    # Alone it takes the lower bound away in CPLEX's and Gurobi's readers; SCIP, HiGHS and GLPK keep 0.
    negative = read(tmp_path, mps(rest="BOUNDS\n UP BND x -1"), "mps", ("negative-upper",))
    assert (negative.lower[0], negative.upper[0]) == (-INF, -1)
    assert read(tmp_path, mps()[:-8], "mps", ("no-end",)).shape == (1, 2)
    for more, suffix in ((mps() + "IMPORTANCES\n c 2\n", "mps"), (lp() + "notes\n", "lp")):
        assert read(tmp_path, more, suffix, ("after-end",)).shape[0] == 1
    with pytest.raises(SolverError, match="no upper bound"):
        read(tmp_path, mps(INTEGER), "mps", ("negative-upper",))
    with pytest.raises(OptionError, match="did you mean no-end"):
        read(tmp_path, mps(), "mps", ("no_end",))


def test_unsupported_parts_are_told_from_mistakes(tmp_path: Path) -> None:
    for name in ("quadratic row", "arrow in the objective", "sos"):
        with pytest.raises(UnsupportedError):
            read(tmp_path, LP_REFUSED[name][0])
    with pytest.raises(UnsupportedError):
        read(tmp_path, MPS_REFUSED["quadratic row"][0], "mps")


def test_compressed_files_and_their_ends(tmp_path: Path) -> None:
    """gzip is read; a file that was cut off, that is no text, or of another suffix is told."""
    whole = gzip.compress(lp().encode())
    (tmp_path / "a.lp.gz").write_bytes(whole)
    assert read_model(tmp_path / "a.lp.gz").shape == (1, 2)
    (tmp_path / "MODEL.MPS").write_bytes(b"\xef\xbb\xbf" + mps().replace("\n", "\r\n").encode())
    assert read_model(tmp_path / "MODEL.MPS").shape == (1, 2)
    for name, data in (("b.lp.gz", whole[:-9]), ("c.mps.gz", b"plain"), ("d.lp", b"\xff\xfe\x00")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(SolverError, match="cannot be read as text"):
            read_model(tmp_path / name)
    (tmp_path / "e.qps").write_text(mps())
    with pytest.raises(SolverError, match="suffix"):
        read_model(tmp_path / "e.qps")


#: Files that one of HiGHS 1.15.1, SCIP 10.0, Gurobi 13.0.3, CBC 2.10.8 and GLPK 5.0 reads otherwise, without a word (said
#: behind each), and the optimum by the documentation of the format.
SEMI = "Bounds\n 4 <= x <= 9\n y <= 2\n"
SETS = "Bounds\n x <= 3\n y <= 6\n z <= 2\nSOS\n"
MIX = "x + y + z <= 10"
ODD_LP = {
    "a term twice": (lp("c: x + y + x >= 2", "obj: x + x + 2 y"), 2.0),  # HiGHS: the last one counts
    "a constant": (lp(objective="obj: x + 2 y + 7"), 9.0),  # Gurobi, CBC: a column called 7
    "a constant first": (lp(objective="obj: 7 + x + 2 y"), 9.0),  # Gurobi, CBC
    "a constant in a row": (lp("c: x + y + 3 >= 5.5"), 2.5),  # Gurobi: a column called 3; HiGHS: drops it
    "a row from above": (lp("c: 3 >= x + y >= 2"), 2.0),  # CBC: drops the second side
    "a row with two sides": (lp("c: -2 <= x - y <= 3", rest="Bounds\n y <= 4", sense="Maximize"), 15.0),  # CBC
    "a strict sign, glued": (lp("c: x + 2 y < 4", "obj: x+y", sense="max"), 4.0),  # Gurobi: a column called x+y
    "a bound from above": (lp("c: x + y <= 20", "obj: -x - y", "Bounds\n 3 >= x >= 1\n y <= 2"), -5.0),  # Gurobi
    "1e30": (lp("c: x + 2 y >= -4\n d: 3 x + y >= -6", "obj: x + y", "Bounds\n x >= -1e30\n y >= -1e30"), -2.8),  # GLPK
    "such that": ("minimise\n x + 2 y\nsuch that\n x + y >= 2\nend\n", 2.0),  # HiGHS, SCIP: no rows
    "signs": (lp("c: x - - y >= 2", "obj: - -x + + 2 y"), 2.0),  # CBC
    "a half": (lp(objective="obj: .5 x + 2. y"), 1.0),  # CBC
    "glued products": (lp("c: x + y <= 2", "obj: - 4 x - 3 y + [2x^2+2x*y+2y^2]/2"), -4.25),  # CBC: drops them
    "products first": (lp("c: x + y <= 2", "obj: [ 2 x ^2 + 2 y^2 ] / 2 - 4 x - 3 y"), -5.125),  # CBC
    "products and a constant": (lp("c: x + y <= 2", "obj: 5 - 4 x - 3 y + [ 2 x ^2 + 2 y ^2 ] / 2"), -0.125),  # Gurobi
    "products of x[1]": (
        lp("c: x[1] + y <= 2", "obj: - 4 x[1] - 3 y + [ 2 x[1]^2 + 2 x[1]*y + 2 y^2]/2"),
        -4.25,
    ),  # CBC
    "products that add up": (lp("c: x + y <= 2", "obj: - 4 x - 3 y + [ x^2 + x^2 + x*y + y*x + 2 y^2 ] / 2"), -4.25),
    "semi-continuous": (lp("c: x + y >= 3.5", "obj: x + 1.5 y", SEMI + "Semi-Continuous\n x"), 4.0),
    "semi-continuous and binary": (
        lp("c: x + y >= 1", "obj: x", "Bounds\n y <= 0.5\nBin\n x\nSemis\n x"),
        1.0,
    ),  # HiGHS
    "semi-integer": (
        lp("c: x + 2 y >= 3.5", "obj: x + 1.5 y", "Bounds\n 1.5 <= x <= 9\n y <= 2\nGen\n x\nSemis\n x"),
        2.625,
    ),
    "set by weights": (lp(MIX, "3 x + 2 y + 4 z", SETS + "s: S2:: x:3 y:1 z:2", "Max"), 20.0),
    "sets called sos": (
        lp(MIX, "3 x + 2 y + 4 z", SETS + "sos1: S1 :: x:1 y:2\n sos2: S2 :: x:1 y:2 z:3", "Max"),
        20.0,
    ),
    "set without a name": (lp(MIX, "3 x + 2 y + 4 z", SETS + "S1::\n x:1\n y:2\n z:3", "Max"), 12.0),
    "indicator": (lp("c: z = 1 -> x + y >= 3\n x <= 1", "x + y - 10 z", "Bounds\n y <= 9\nBin\n z"), -7.0),
    "indicator of 0": (lp("z=0->x + y >= 3\n x <= 1", "x + y + 10 z", "Bounds\n y <= 9\nBin\n z"), 3.0),
}
UPWARDS, QP = "NAME t\nOBJSENSE\n MAX", " x obj -4 c 1\n y obj -3 c 1"
AT_MOST = " N obj\n L c"
ODD_MPS = {
    "constant": (mps(rest="RHS\n RHS c 2 obj -5"), 7.0),  # GLPK: -3
    "constant alone": (mps(rest="RHS\n RHS obj -5"), 5.0),  # GLPK: -5
    "constant of another free row": (mps(rest="RHS\n RHS c 2 o -5", rows=" N obj\n N o\n G c"), 2.0),  # HiGHS: 7
    "range of G": (mps(rest="RHS\n RHS c 2\nRANGES\n R c -3", head=UPWARDS), 10.0),  # CBC minimises
    "range of E up": (mps(rest="RHS\n RHS c 5\nRANGES\n R c 3", rows=" N obj\n E c", head=UPWARDS), 16.0),  # CBC
    "range of E down": (mps(rest="RHS\n RHS c 5\nRANGES\n R c -3", rows=" N obj\n E c"), 2.0),
    "sense on one line": (mps(rows=AT_MOST, head="NAME t\nOBJSENSE MAXIMIZE"), 4.0),  # HiGHS minimises
    "negative upper bound": (mps(rest="RHS\n RHS c -5\nBOUNDS\n MI BND x\n UP BND x -1"), -5.0),
    "without a name": (mps(head="* nothing"), 2.0),  # CBC
    "products": (mps(QP, "RHS\n RHS c 2\nQUADOBJ\n x x 2\n y x 1\n y y 2", AT_MOST), -4.25),  # CBC: drops them
    "products before bounds": (
        mps(QP, "RHS\n RHS c 2\nQUADOBJ\n x x 2\n y y 2\nBOUNDS\n UP B x 0.5", AT_MOST),
        -4.0,
    ),  # CBC
    "products as a matrix": (mps(QP, "RHS\n RHS c 2\nQMATRIX\n x x 2\n x y 1\n y x 1\n y y 2", AT_MOST), -4.25),
    "products and a constant": (mps(QP, "RHS\n RHS c 2 obj -7\nQUADOBJ\n x x 2\n y y 2", AT_MOST), 1.875),  # CBC
    "semi-continuous": (
        mps(" x obj 1 c 1\n y obj 1.5 c 1", "RHS\n RHS c 1.5\nBOUNDS\n SC B x 9\n LO B x 4\n UP B y 2"),
        2.25,
    ),
    "set": (
        mps(
            " x obj -3 c 1\n y obj -2 c 1",
            "SOS\n S1 s\n x 2\n y 1\nRHS\n RHS c 9\nBOUNDS\n UP B x 3\n UP B y 6",
            AT_MOST,
        ),
        -12.0,
    ),
    "indicator": (
        mps(" x obj 1 c 1\n y obj -5", "RHS\n RHS c 2\nBOUNDS\n UP B x 4\n BV B y\nINDICATORS\n IF c y 1"),
        -3.0,
    ),
}


@pytest.mark.parametrize(("suffix", "name"), [("lp", name) for name in ODD_LP] + [("mps", name) for name in ODD_MPS])
def test_what_others_misread(tmp_path: Path, suffix: str, name: str) -> None:
    text, optimum = (ODD_LP if suffix == "lp" else ODD_MPS)[name]
    assert solve_matrix(read(tmp_path, text, suffix)).objective == pytest.approx(optimum, abs=1e-5)


def test_a_second_reader_must_take_the_file_in_the_same_way(tmp_path: Path) -> None:
    """HiGHS 1.15.1 reads ``x + x`` as x, and drops a constant in a row; what both take alike is what is read without it."""
    quadratic = lp("c: x + y <= 2\n x - y >= -9", "obj: - 4 x + [ 2 x ^2 + 2 x * y + 2 y ^2 ] / 2", "General\n x")
    for text, suffix in (
        (quadratic, "lp"),
        (ODD_LP["semi-continuous"][0], "lp"),
        (ODD_MPS["range of E up"][0], "mps"),
        (ODD_MPS["products"][0], "mps"),
    ):
        (tmp_path / f"model.{suffix}").write_text(text)
        twice = read_model(tmp_path / f"model.{suffix}", second="highs")
        assert twice.objective(np.ones(2)) == read_model(tmp_path / f"model.{suffix}").objective(np.ones(2))
    for text, words in (
        (lp(objective="obj: x + x + 2 y"), "the cost of x is 2 by coralopt's reader and 1 by highs's"),
        (ODD_LP["a term twice"][0], "HiGHS's reader warns of it"),
        (ODD_LP["a constant in a row"][0], "lower side of row c is 2.5 by coralopt's reader and 5.5"),
        (ODD_LP["a strict sign, glued"][0], "HiGHS's reader refuses it"),
    ):
        (tmp_path / "model.lp").write_text(text)
        with pytest.raises(SolverError, match=words):
            read_model(tmp_path / "model.lp", second="highs")
    with pytest.raises(UnsupportedError, match="reads no files"):
        read_model(tmp_path / "model.mps", second="scipy")


# ---- the commands --------------------------------------------------------------------------------------------------------


def test_the_commands_solve_and_check(tmp_path: Path, run_cli: RunCli) -> None:
    """A solution that ``solve`` writes passes ``check``; a wrong one does not; --json is one document."""
    (tmp_path / "m.lp").write_text(lp("c: 0.1 x + 0.2 y >= 0.3", rest="Bounds\n x <= 2\nGeneral\n x"))
    said = run_cli("solve", "m.lp", "--output", "m.sol", "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["objective"] == pytest.approx(3.0)
    said = run_cli("check", "m.lp", "m.sol", "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["ok"] is True
    # 0.1 * 1 + 0.2 * 1 is 0.3 in decimal fractions, though not in doubles.
    (tmp_path / "exact.sol").write_text("=obj= 3\nx 1\ny 1\n")
    assert run_cli("check", "m.lp", "exact.sol", "--tolerance", "0").returncode == 0
    (tmp_path / "wrong.sol").write_text("# Objective value = 7\nx 2.5\nz 1\n")
    said = run_cli("check", "m.lp", "wrong.sol", "--json")
    assert said.returncode == 1
    document = json.loads(said.stdout)
    assert document["ok"] is False
    sentences = "\n".join(document["violations"])
    for word in ("'z' is not in the model", "column x is 2.5", "row c is 0.25", "integer column x", "objective 7"):
        assert word in sentences
    said = run_cli("check", "m.lp", "wrong.sol")
    assert (said.returncode, said.stdout.count("row c is 0.25")) == (1, 1)
    (tmp_path / "bad.lp").write_text(LP_REFUSED["quadratic objective"][0])
    said = run_cli("solve", "bad.lp", "--json")
    assert said.returncode == 2
    assert "line 2" in json.loads(said.stdout)["error"]
    (tmp_path / "int.mps").write_text(mps(INTEGER))
    assert run_cli("solve", "int.mps").returncode == 2
    assert run_cli("solve", "int.mps", "--allow", "integer-bounds").returncode == 0


@pytest.mark.parametrize(
    "text",
    [
        "=obj= 3\nx 1\ny 1\n",
        "x 1\ny 1\n",
        "solution status: optimal solution found\nobjective value:            3\nx      1 \t(obj:1)\ny   1 \t(obj:2)\n",
        "# Solution for model m\n# Objective value = 3\nx 1\ny 1\n",
        "Model status\nOptimal\n\n# Primal solution values\nFeasible\nObjective 3\n# Columns 2\nx 1\ny 1\n# Rows 1\nc 2\n"
        "\n# Dual solution values\nFeasible\n# Columns 2\nx 0\ny 1\n# Rows 1\nc 1\n",
    ],
)
def test_solution_files_of_others(tmp_path: Path, text: str) -> None:
    """MIPLIB, bare, SCIP, Gurobi, HiGHS."""
    from coralopt.solving import check_solution_file

    (tmp_path / "m.lp").write_text(lp())
    (tmp_path / "m.sol").write_text(text)
    check = check_solution_file(tmp_path / "m.lp", tmp_path / "m.sol")
    assert check.holds, check.violations
    assert check.objective == 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("=infeas=\n", "no solution"),
        ("no solution available\n", "no solution"),
        ("", "no values"),
        ("x one\n", "line 1.*not a number"),
        ("x 1\nx 2\n", "line 2.*two values"),
        ("<?xml version='1.0'?>\n<CPLEXSolution/>\n", "line 1"),
        ("1 x 1 0\n", "line 1"),
        ("x 1e300\n", "beyond the range"),
        ("# Columns 1\n#\nx one\n", "line 3.*not a number"),
    ],
)
def test_solution_files_that_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    from coralopt.solving import check_solution_file

    (tmp_path / "m.lp").write_text(lp("c: 1e18 x + y <= 2", "obj: 1e18 x + 2 y"))
    (tmp_path / "m.sol").write_text(text)
    with pytest.raises(SolverError, match=reason):
        check_solution_file(tmp_path / "m.lp", tmp_path / "m.sol")
    with pytest.raises(OptionError, match="tolerance inf"):
        check_solution_file(tmp_path / "m.lp", tmp_path / "m.sol", tolerance=INF)


def test_reading_and_solving_foreign_text(tmp_path: Path) -> None:
    """The whole way: the relaxation of a file is what its text says."""
    model = read(tmp_path, lp("c: x + y >= 2\n d: x - y <= 1", "obj: x + x + 3 y", sense="Minimise"))
    result = solve_matrix(model)
    assert result.x is not None
    np.testing.assert_allclose(result.x, [1.5, 0.5], atol=1e-7)
