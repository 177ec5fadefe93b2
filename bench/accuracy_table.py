"""The tables of docs/accuracy.md, from the committed results. Run it to write them; tests/test_accuracy.py compares."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
RESULTS = ROOT / "bench" / "results.jsonl"
SETS = {
    "sst2": ("SST-2", "valid"), "trec": ("TREC", "test"), "agnews": ("AG News, part", "test"), "snli": ("SNLI, part", "test"),
    "mnli": ("MNLI, part", "valid"), "qnli": ("QNLI, part", "valid"), "qqp": ("QQP, part", "valid"),
}  # fmt: skip
NAMES = {"trec": "TREC", "cola": "CoLA", "mrpc": "MRPC", "rte": "RTE", "stsb": "STS-B (Pearson)", "sst2": "SST-2", "qnli": "QNLI, part",
         "qqp": "QQP, part", "agnews": "AG News, part", "mnli": "MNLI, part", "snli": "SNLI, part"}  # fmt: skip
NOT_SAID = {"model.compare": False, "train.average": 0.0}


def main() -> None:
    results = {record["name"]: record.get("numbers") for record in map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())}
    trials, bag = results["classify_h200"]["trials"], results["bag_of_words"]
    page = PAGE.read_text()
    texts, cores = results["wikitext2_cpu"], results["classify_cpu"]["runs"]
    for name, lines in (
        ("accuracy", accuracy(trials, bag)),
        ("tables", default_runs(results["tables_default"])),
        ("labels", label_sets(results["multilabel_films_bag"])),
        ("words", words(results["attribution"])),
        ("cores", on_cores(cores)),
        ("trials", tried(trials)),
        ("text", text(texts)),
    ):
        before, _, rest = page.partition(f"<!-- {name} -->\n")
        page = before + f"<!-- {name} -->\n" + "\n".join(lines) + "\n<!-- end -->" + rest.partition("<!-- end -->")[2]
    PAGE.write_text(page)


def accuracy(trials: list[dict], bag: dict) -> list[str]:
    lines = ["| set | split | tokmix | seeds | bag of words |", "|---|---|---|---|---|"]
    for name, (shown, split) in SETS.items():
        scores = [100 * one[split] for one in sorted(trials, key=lambda one: one["seed"]) if one["data"] == name and one["default"]]
        spread = f"{statistics.mean(scores):.1f} ± {statistics.stdev(scores):.1f}"
        lines.append(
            f"| {shown} | {split} | {spread} | {', '.join(f'{score:.1f}' for score in scores)} | {100 * bag[name]['accuracy']:.1f} |"
        )
    return lines


def default_runs(runs: list[dict]) -> list[str]:
    """A line for each set: means over its seeds, of the ends of the interval too."""
    columns = ("set", "split", "rows", "tokmix, 95 % interval", "answers by", "bag alone", "network alone", "best rival",
               "seconds of a core", "seeds")  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for name in dict.fromkeys(one["data"] for one in runs):
        seeds = [one for one in runs if one["data"] == name]
        first = seeds[0]
        figure = "pearson" if "pearson" in first["bag"] else "accuracy"
        rival = max(known[figure] for known in first["rivals"].values())  # they have no seed
        ends = [percent(statistics.mean(end)) for end in zip(*(one["tokmix"]["interval"] for one in seeds), strict=True)]
        whole = f"{spread([one['tokmix'][figure] for one in seeds])} [{', '.join(ends)}]"
        answering = ", ".join(dict.fromkeys(one["tokmix"]["by"] for one in seeds))
        bag, network = spread([one["bag"][figure] for one in seeds]), spread([one["network"] for one in seeds])
        spent = f"{statistics.median(one['core_seconds'] for one in seeds):.0f}"
        row = [NAMES.get(name, name), first["split"], f"{first['rows']:,}", whole, answering, bag, network, percent(rival), spent]
        lines.append(f"| {' | '.join(row)} | {len(seeds)} |")
    return lines


def spread(shares: list[float]) -> str:
    """The mean of some seeds with their standard deviation; one seed by itself, and one number where all are the same."""
    deviation = statistics.stdev(shares) if len(shares) > 1 else 0.0
    return percent(statistics.mean(shares)) + (f" ± {percent(deviation)}" if deviation > 0 else "")


def label_sets(runs: list[dict]) -> list[str]:
    lines = ["| model | micro-F1 |", "|---|---|"]
    for one in runs:
        low, high = one["tokmix"]["interval"]
        lines.append(f"| tokmix, by the {one['tokmix']['by']} | {percent(one['tokmix']['micro_f1'])} [{percent(low)}, {percent(high)}] |")
        lines += [f"| its network alone | {percent(one['network'])} |"] if one["network"] else []
        lines += [f"| its bag of words alone | {percent(one['bag']['micro_f1'])} |"]
        for name, shown in (("svm", "LinearSVC"), ("logistic", "logistic regression")):
            lines += [f"| {shown}, {border} | {percent(known['micro_f1'])} |" for border, known in one["rivals"][name].items()]
    return lines


def words(runs: list[dict]) -> list[str]:
    lines = ["| run | answers by | texts | together | alone | gradients |", "|---|---|---|---|---|---|"]
    for one in runs:
        counts = " | ".join(f"{found} ({percent(found / one['texts'])} %)" for found in one["better"].values())
        lines.append(f"| {NAMES[one['run'].removeprefix('run_')]} | {one['answers']} | {one['texts']} | {counts} |")
    return lines


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def on_cores(runs: list[dict]) -> list[str]:
    lines = ["| set | split | tokmix | seed | bag of words | minutes, warm-up included | cores |", "|---|---|---|---|---|---|---|"]
    for one in runs:
        shown, split = SETS[one["data"]]
        assert one["split"] == split
        scores = f"{100 * one['figures']['accuracy']:.1f} | {one['seed']} | {100 * one['baseline']['accuracy']:.1f}"
        lines.append(f"| {shown} | {split} | {scores} | {one['cost']['seconds'] / 60:.0f} | {one['cost']['machine']['cores']} |")
    return lines


def tried(trials: list[dict]) -> list[str]:
    """One line for each setting that was tried, the mean over its seeds."""
    groups: dict[tuple[str, str], list[dict]] = {}
    for one in trials:
        groups.setdefault((one["data"], spelled(one)), []).append(one)
    lines = ["| set | vocabulary and settings | runs | held out | valid | test |", "|---|---|---|---|---|---|"]
    for (name, settings), runs in sorted(groups.items(), key=lambda item: (list(SETS).index(item[0][0]), item[0][1])):
        cells = [mean(runs, split) for split in ("held_out", "valid", "test")]
        lines.append(f"| {SETS[name][0]} | {settings} | {len(runs)} | {' | '.join(cells)} |")
    return lines


def text(found: dict) -> list[str]:
    lines = ["| model | parameters | bits per byte, test | training FLOPs |", "|---|---|---|---|"]
    sizes = {entry["name"]: entry["parameters"] for entry in found["compare"]["entries"]}
    for run in found["compare"]["runs"]:
        if run["state"] == "finished" and run["cost"]:
            total = run["cost"]["flops_training"] * run["cost"]["examples"]
            lines.append(f"| `{run['entry']}` | {sizes[run['entry']]:,} | {run['score']:.3f} | {total:.2e} |")
    ngram = found["ngram"]
    lines.append(f"| byte n-gram of order {ngram['order']}, Witten-Bell | counts | {ngram['bits_per_byte']:.3f} | - |")
    return lines


def spelled(one: dict) -> str:
    settings = {key.partition(".")[2]: value for key, value in one["settings"].items()}
    if one["warm_up"]:
        settings["pretrain"] = one["warm_up"]["epochs"]
        settings |= {f"pretrain {key}": value for key, value in one["warm_up"].items() if key != "epochs"}
    said = ", ".join(f"{key} {value}".replace("|", "\\|") for key, value in settings.items())
    return f"{one['vocab']:,}" + (f"; {said}" if said else "")


def mean(runs: list[dict], split: str) -> str:
    scores = [one[split] for one in runs if one.get(split) is not None]
    return f"{100 * statistics.mean(scores):.1f}" if scores else ""


if __name__ == "__main__":
    main()
