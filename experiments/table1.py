"""Table 1: four privacy notions, five properties each, every cell backed by a small program.

Growth is of counted work (see `growth`), the same in every run; how seconds grew in this run is in the file of timings.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments import growth, notions
from experiments.claims import FAILS, HOLDS, judge
from experiments.context import Context

TITLE = "Privacy notions compared, cell by cell"
NEEDS: tuple[str, ...] = ()
SIZE = (13, 5.2)
ROWS = ("LDP", "Pufferfish", "MIP", "SIP")
COLUMNS = ("composability", "guarantee", "correlation", "complexity", "online")
NEAR = 0.1  # an exponent that is meant to be a whole number may be off by this
Claim = dict[str, Any]


def run(context: Context) -> dict[str, Any]:
    numbers = {
        "examples": context.part("examples", examples),
        "growth": context.part("growth", lambda: growth.measured(context.quick, context.timings)),
        "note": "work is counted (cells of tables, transitions walked, quilts weighed), so that it is the same in "
        "every run; how the seconds of this run grew is in timings.json",
    }
    return {"name": "table1", "title": TITLE, "numbers": numbers, "claims": claims(numbers)}


def examples() -> dict[str, Any]:
    return {
        "LDP composes": notions.ldp_composes(),
        "Pufferfish composes": notions.pufferfish_composes(),
        "MIP composes": notions.mip_composes(),
        "SIP composes": notions.sip_composes(),
        "guarantee": notions.guarantees(),
        "correlation": notions.correlation(),
        "online": notions.online(),
    }


def claims(numbers: dict[str, Any]) -> list[Claim]:
    """One for each cell, row by row."""
    shown, grown = numbers["examples"], numbers["growth"]
    columns = (_composability(shown), _guarantee(shown), _correlation(shown), _complexity(grown), _online(shown))
    return [column[row] for row in ROWS for column in columns]


def _cell(claim: str, holds: bool, reason: str, figures: dict[str, Any]) -> Claim:
    return judge(claim, None, holds, reason, figures)  # a cell is about a notion, which sound mechanisms keep


def _composability(shown: dict[str, Any]) -> dict[str, Claim]:
    ldp, fish, mip, sip = (shown[f"{row} composes"] for row in ROWS)
    alone, counts = ldp["of the first event alone, in ε"], fish["two counts: leakage about an event, ε = 1"]
    ours, theirs = (sip[f"{name}: leakage of the stream over Σε"] for name in ("optimal", "crr"))
    return {
        "LDP": _cell(
            "LDP composes sequentially: yes",
            ldp["of the pair, in ε"] <= 2 + 1e-6,
            f"Σε for the sequence as a whole; about one event of it, correlation makes two releases at ε worth "
            f"{alone:.2f} ε, so ε for each event is not kept",
            ldp,
        ),
        "Pufferfish": _cell(
            "Pufferfish composes sequentially: yes, with Markovity",
            counts <= 2.0 and fish["one count: leakage about an event, ε = 1"] <= 1.0,
            "true of counts with the noise of one Markov quilt, by enumeration; not of the notion, Markov data or not: "
            "of three fair bits X1⊕X2 and X1⊕X2⊕X3 each tell nothing about any bit, and together tell X3",
            fish,
        ),
        "MIP": _cell(
            "MIP composes sequentially: no",
            mip["Σ of its steps differs by at most"] > 0,
            "it does, exactly, whatever a kernel remembers: I(X_1..X_T; Y_1..Y_T) is the sum of I(X_1..X_T; Y_t | past "
            "releases), by the chain rule. SIP's log lifts add up in the same way, where the paper's IIL is given past "
            "releases, and a hidden bit that several releases share breaks neither",
            mip,
        ),
        "SIP": _cell(
            "SIP composes sequentially: yes",
            ours <= 1 + 1e-9,
            "log lifts of the steps add up to those of the sequence, exactly; the largest, in Σε: with sound steps "
            f"{ours:.2f}, with published steps at the same nominal ε {theirs:.2f}",
            sip,
        ),
    }


def _guarantee(shown: dict[str, Any]) -> dict[str, Claim]:
    found, fish = shown["guarantee"], shown["Pufferfish composes"]
    level = {
        name: found[f"{name}: largest leakage over 300 beliefs, in ε"]
        for name in ("randomized_response", "optimal", "crr")
    }
    most = found["mutual_information: leakage at (.999, .001), ε = 0.01"]
    count = fish["one count: leakage about an event, ε = 1"]
    return {
        "LDP": _cell(
            "LDP guarantees the worst case",
            level["randomized_response"] <= 1 + 1e-6,
            "largest leakage of randomised response over 300 beliefs of six symbols, in ε",
            {"randomised response": level["randomized_response"]},
        ),
        "Pufferfish": _cell(
            "Pufferfish guarantees the worst case",
            count <= 1.0,
            "largest leakage of one quilt count about any event of eight, by enumeration, at ε = 1, under the chain",
            {"one count": count},
        ),
        "MIP": _cell(
            "MIP guarantees the average case only",
            most == "inf" or most > 1.0,
            "at belief (.999, .001) everything may be disclosed at ε = 0.01, as its entropy is 0.008: one release then "
            "rules a symbol out, an infinite leakage",
            {"leakage": most},
        ),
        "SIP": _cell(
            "SIP guarantees the worst case",
            level["optimal"] <= 1 + 1e-6,
            "the notion does, and sound kernels keep it; the published kernel is bounded from one side only",
            {"sound, in ε": level["optimal"], "published, in ε": level["crr"]},
        ),
    }


def _correlation(shown: dict[str, Any]) -> dict[str, Claim]:
    found = shown["correlation"]
    change = {name: found[f"{name}: change"] for name in ("randomized_response", "mutual_information", "optimal")}
    sigmas = found["quilt: σ for independent and for sticky events"]
    why = "how far a row of the kernel moves when independent events become sticky ones, after the same release"
    return {
        "LDP": _cell(
            "LDP leverages correlation: no",
            change["randomized_response"] == 0.0,
            why,
            {"moves": 0.0 + change["randomized_response"]},
        ),
        "Pufferfish": _cell(
            "Pufferfish leverages correlation: yes",
            sigmas[1] > sigmas[0],
            "the noise follows the chain; it only ever adds noise, where SIP's kernels use the chain to err less",
            {"σ for independent and for sticky events": sigmas},
        ),
        "MIP": _cell(
            "MIP leverages correlation: yes",
            change["mutual_information"] > 0,
            why,
            {"moves": change["mutual_information"]},
        ),
        "SIP": _cell("SIP leverages correlation: yes", change["optimal"] > 0, why, {"moves": change["optimal"]}),
    }


def _complexity(grown: dict[str, Any]) -> dict[str, Claim]:
    def power(name: str) -> float:
        return float(grown[name]["exponent"])

    def near(name: str, whole: float) -> bool:
        return abs(power(name) - whole) <= NEAR

    def figure(line: dict[str, Any]) -> str:
        if "factor" in line:
            return f"× {line['factor']:.4g} for one more"
        return f"{line['exponent']:.4g} ± {line['ci']:.2g}"

    def figures(start: str) -> dict[str, Any]:
        return {name: figure(line) for name, line in grown.items() if name.startswith(start)}

    dense, sparse = "SIP published, n, every transition possible", "SIP published, n, four followers"
    return {
        "LDP": _cell("LDP costs O(|X|) a release", near("LDP, n", 1), "exponent of counted work", figures("LDP")),
        "Pufferfish": _cell(
            "Pufferfish costs O(T³|X|³)",
            near("Pufferfish as published, T", 3) and near("Pufferfish as published, n", 3),
            "every quilt of every event for every pair and end, as published (counted from the definition); a search "
            "that stops where no wider quilt can win weighs fewer",
            figures("Pufferfish"),
        ),
        "MIP": _cell(
            "MIP costs O(|X|^2T)",
            abs(grown["MIP whole sequences, T (binary)"]["factor"] - 4) <= NEAR
            and near("MIP whole sequences, n (T = 2)", 4),
            "a table over whole sequences: of two symbols each event multiplies it by 4, and for T = 2 it grows with "
            "|X|⁴; a kernel for one symbol at a time, which composes, takes |X|² at most",
            figures("MIP"),
        ),
        "SIP": _cell(
            "SIP costs O(|X|) a release",
            near(dense, 1) and near("SIP sound, n, every transition possible", 1),
            "the kernel does, but the belief must be moved along the chain, which costs its transitions: exponent "
            f"{power(dense):.2f} where everything can follow everything, {power(sparse):.2f} where four symbols can. "
            "Batches: the paper's table grows by |X|² with every symbol, the tree by about w² (ε grows with w)",
            figures("SIP"),
        ),
    }


def _online(shown: dict[str, Any]) -> dict[str, Claim]:
    found = shown["online"]
    why = "releases made before a symbol do not change with it: each takes the symbol, the past releases, and no more"
    sigmas = {name: value for name, value in found.items() if name.startswith("quilt")}

    def early(name: str) -> bool:
        return bool(found[f"{name}: early releases unchanged"])

    cells = {
        row: _cell(f"{row} releases online: yes", early(name), why, {"early releases unchanged": early(name)})
        for row, name in (("LDP", "randomized_response"), ("MIP", "mutual_information"), ("SIP", "optimal"))
    }
    cells["Pufferfish"] = _cell(
        "Pufferfish releases online: no",
        len(set(sigmas.values())) > 1,
        "one number over a stream of known length: its noise depends on that length, and it takes all codes at once",
        sigmas,
    )
    return cells


def draw(figure: Any, result: dict[str, Any]) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(1.2, 1))
    left.axis("off")
    marks = {HOLDS: ("holds", "#17703c"), FAILS: ("does not", "#a3262f")}  # cells have no other verdict
    verdicts = np.reshape([claim["verdict"] for claim in result["claims"]], (len(ROWS), len(COLUMNS)))
    text = [[marks[verdict][0] for verdict in row] for row in verdicts]
    table = left.table(text, rowLabels=ROWS, colLabels=COLUMNS, loc="center", cellLoc="center")
    table.scale(1, 2.2)
    for (row, column), cell in table.get_celld().items():
        if row > 0 and column >= 0:
            cell.get_text().set_color(marks[verdicts[row - 1][column]][1])
    left.set_title("the paper's cell, judged")
    for name, line in result["numbers"]["growth"].items():
        if ", n" in name:
            work = np.asarray(line["work"], float)
            label = f"{name}: {line['exponent']:.2f}"
            right.plot(
                np.asarray(line["sizes"]) / line["sizes"][0], work / work[0], marker="o", ms=3, lw=1, label=label
            )
    right.set(xscale="log", yscale="log", xlabel="|X|, in its smallest", ylabel="counted work", title="growth with |X|")
    right.legend(frameon=False, fontsize=6)
