"""``rank``: the page Leaderboard as a table."""

from __future__ import annotations

from fedcore.cli import common
from fedcore.cli.results import metric_named
from fedcore.cli.tables import AsJson, Row, print_table
from fedcore.config.field_names import seeds_text
from fedcore.store import Store


@common.command("rank")
def rank(
    experiments: common.ListedExperiments = None,
    metric: common.MetricName = "personal",
    rule: common.ReportedRound = "last",
    where: common.RunFilter = "",
    as_json: AsJson = False,
    db: common.Database = None,
) -> None:
    """Rank the methods of each setting.

    Every experiment with runs in a setting counts; names of experiments limit which settings are shown. A
    rank is the range that the seeds leave open, and `chosen` says why a method with several hyper-parameter
    settings has this one. Costs are those of a run. Notes give the finding and the further seeds that would
    make a ranking decisive.
    """
    from fedcore.results.costs import row_costs
    from fedcore.results.leaderboard import board, board_settings, decisive_runs

    store, by = Store(db), metric_named(metric)
    named = set(map(store.experiments.find, experiments or ()))
    table: list[Row] = []
    for setting in board_settings(store, store.runs.done()):
        if named and named.isdisjoint(setting.experiments):
            continue
        made = board(store, setting, by, rule, where)
        for row, cost in zip(made.rows, row_costs(store, made.comparison, setting.key, by), strict=True):
            ranked = {"setting": setting.title, "rank": made.rank_text(row), "label": row.label}
            found = {"mean": row.stats[by].mean, "std": row.stats[by].std}
            found |= {"megabytes": cost.megabytes, "seconds": cost.seconds}
            rounded = {name: None if value is None else round(value, 2) for name, value in found.items()}
            table.append(ranked | {"n": row.stats[by].n} | rounded | {"chosen": made.chosen_by(row)})
        if made.rows:
            common.print_note(made.finding, setting.title)
        for row, lacking in decisive_runs(store, made)[0]:
            seeds = seeds_text({run.seed for run in lacking})
            common.print_note(f"{row.label} on {seeds}", "a decisive ranking needs")
    print_table(table, as_json, under=("setting",))
    common.warn_of_damage(store)
