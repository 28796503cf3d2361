"""Prints the tables of docs/pace-demands.md.

    demand_tables.py SETS RESULT.json...

SETS are the names of the sets of levels, separated by commas. Each result is the JSON of `tollgate
pace simulate` with these sets, of a trace with one type of tasks.
"""

import json
import os
import sys


def figures(value, digits):
    """A number with this many significant digits. Zeros at its end are left out."""
    return f"{value:.{digits}g}"


def percent(share):
    """A share with its interval, in percent."""
    return [100 * share[key] for key in ("estimate", "low", "high")]


def missed(policy):
    estimate, low, high = percent(policy["missed_share"])
    if policy["missed"] == 0:
        return ""
    return f"; missed {figures(estimate, 2)} [{figures(low, 2)}, {figures(high, 2)}]"


def energy(policy):
    estimate, low, high = percent(policy["modelled_of_fastest"])
    interval = "" if policy["policy"] == "fastest" else f" [{low:.1f}, {high:.1f}]"
    return f"{estimate:.1f}{interval}{missed(policy)}"


def verdict(of_type):
    """How much more energy pace needs than the cheapest other policy that meets the target."""
    found = of_type["verdict"]
    if found["verdict"] not in ("more", "less"):
        return found["verdict"].replace("-", " ")
    estimate, low, high = (ratio - 100 for ratio in percent(found["modelled_of_other"]))
    return f"{estimate:+.1f} % [{low:.1f}, {high:.1f}] ({found['against']})"


def row(cells):
    print(f"| {' | '.join(cells)} |")


def head(cells):
    row(cells)
    print("|---" * len(cells) + "|")


def main(sets, *paths):
    names = [f"`{name}`" for name in sets.split(",")]
    results = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            of_sets = json.load(file)["sets"]
        name = os.path.basename(path).removesuffix(".json")
        results[name] = [of_set["types"][0] for of_set in of_sets]
    head(["program", *names])
    for name, types in results.items():
        row([name, *(verdict(of_type) for of_type in types)])
    for name, types in results.items():
        first = types[0]
        work = [figures(first["work"][key] / 1e6, 3) for key in ("median", "p95", "p99", "max")]
        all_policies = (policy for of_type in types for policy in of_type["policies"])
        none = next((policy for policy in all_policies if not policy["missed"]), None)
        no_miss = ""
        if none:
            at_most = figures(percent(none["missed_share"])[2], 2)
            no_miss = f" No miss of {first['judged']:,} judged tasks: 0 [0, {at_most}]."
        print(
            f"\n{name}: {first['trained'] + first['judged']:,} tasks; work in million cycles: "
            f"median {work[0]}, 95 % {work[1]}, 99 % {work[2]}, maximum {work[3]}.{no_miss}\n"
        )
        head(["policy", *names])
        for index, policy in enumerate(first["policies"]):
            row([policy["policy"], *(energy(of_type["policies"][index]) for of_type in types)])


if __name__ == "__main__":
    main(*sys.argv[1:])
