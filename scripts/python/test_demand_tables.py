"""Tests of demand_tables.py."""

import contextlib
import io
import json
import os
import tempfile
import unittest

import demand_tables


def policy(name, estimate, missed):
    return {
        "policy": name,
        "modelled_of_fastest": {
            "estimate": estimate,
            "low": estimate - 0.01,
            "high": estimate + 0.01,
        },
        "missed": missed,
        "missed_share": {"estimate": missed / 200, "low": 0, "high": 0.0125},
    }


def type_with(verdict):
    return {
        "trained": 1000,
        "judged": 200,
        "work": {"median": 34_700, "p95": 4_820_000, "p99": 6_400_000, "max": 12_000_000},
        "verdict": verdict,
        "policies": [policy("fastest", 1, 0), policy("pace", 0.817, 1)],
    }


RESULT = {
    "sets": [
        {
            "types": [
                type_with(
                    {
                        "verdict": "less",
                        "against": "flat",
                        "modelled_of_other": {"estimate": 0.95, "low": 0.94, "high": 0.96},
                    }
                )
            ]
        },
        {"types": [type_with({"verdict": "no-difference"})]},
    ]
}

EXPECTED = """\
| program | `slow` | `quick` |
|---|---|---|
| game | -5.0 % [-6.0, -4.0] (flat) | no difference |

game: 1,200 tasks; work in million cycles: median 0.0347, 95 % 4.82, 99 % 6.4, maximum 12. \
No miss of 200 judged tasks: 0 [0, 1.2].

| policy | `slow` | `quick` |
|---|---|---|
| fastest | 100.0 | 100.0 |
| pace | 81.7 [80.7, 82.7]; missed 0.5 [0, 1.2] | 81.7 [80.7, 82.7]; missed 0.5 [0, 1.2] |
"""


class DemandTables(unittest.TestCase):
    def test_tables_have_verdicts_energies_and_misses(self):
        out = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(out):
            path = os.path.join(folder, "game.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(RESULT, file)
            demand_tables.main("slow,quick", path)
        self.assertEqual(out.getvalue(), EXPECTED)


if __name__ == "__main__":
    unittest.main()
