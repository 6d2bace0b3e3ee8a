"""The SQL of ``queries``, in one place, so that a test can read the query plan of every statement."""

from __future__ import annotations

RUN_COLUMNS = """
r.id, r.experiment_id, r.method, r.label, r.seed, r.held_out, r.group_hash, r.origin, r.status, r.device,
r.attempt, r.owner, r.pid, r.pid_started, r.heartbeat_at, r.created_at, r.started_at, r.finished_at,
r.rounds_total, r.rounds_done, r.last_test, r.best_round, r.best_test, r.worst_client, r.message, r.notices,
r.reason
"""

CHOSEN = "(SELECT value FROM json_each(:ids))"
"""A list of ids as one JSON parameter: any number of them, without a new statement for each."""

NAMED_CELL = """
a.run_id, a.split, a.point, a.round, m.name AS model, m.kind AS model_kind, t.name AS test_set,
t.kind AS test_set_kind, t.domain, a.correct, a.total, a.loss
"""

# CROSS JOIN keeps the order of the tables: 0.7 ms against 65 for the planner's own choice at a million rows
NAMES = """
CROSS JOIN entities m ON m.run_id=a.run_id AND m.entity=a.model
CROSS JOIN entities t ON t.run_id=a.run_id AND t.entity=a.test_set
"""

NEED = """
(SELECT max(o.peak_memory) FROM runs o WHERE o.group_hash=r.group_hash AND o.peak_memory IS NOT NULL)
"""
"""Most memory that a run of the same setting has taken, bytes; NULL where none was measured."""

STATEMENTS = {
    "experiments": "SELECT * FROM experiments WHERE archived <= :archived ORDER BY created_at DESC, id DESC",
    "experiment": "SELECT * FROM experiments WHERE id=:id",
    "all_runs": f"SELECT {RUN_COLUMNS} FROM runs r ORDER BY r.id",
    "runs_of": f"SELECT {RUN_COLUMNS} FROM runs r WHERE r.experiment_id IN {CHOSEN} ORDER BY r.id",
    "runs": f"SELECT {RUN_COLUMNS} FROM runs r WHERE r.id IN {CHOSEN} ORDER BY r.id",
    "runs_after": "SELECT count(*) AS number, max(id) AS newest FROM runs WHERE id > :id",
    "run_text": "SELECT config, environment, error FROM runs WHERE id=:id",
    "configs": f"SELECT id, config FROM runs WHERE id IN {CHOSEN} ORDER BY id",
    "tokens": f"SELECT id, status, rounds_done, attempt, message FROM runs WHERE id IN {CHOSEN}",
    "pulse": "SELECT id, status, rounds_done, attempt, message FROM runs WHERE experiment_id=:id ORDER BY id",
    "queue": "SELECT id FROM runs WHERE status='queued' ORDER BY priority DESC, id",
    "waiting": f"""
        SELECT r.id, e.name, r.label, r.seed, r.held_out, r.device_asked, r.rounds_total, {NEED} AS need
        FROM runs r JOIN experiments e ON e.id=r.experiment_id
        WHERE r.status='queued' ORDER BY r.priority DESC, r.id
        """,
    "entities": """
        SELECT entity, kind, name, domain, samples, class_counts FROM entities
        WHERE run_id=:run ORDER BY entity
        """,
    "heatmap": """
        SELECT model, test_set, correct, total, loss FROM accuracy
        WHERE run_id=:run AND split=:split AND point=:point AND round=:round ORDER BY model, test_set
        """,
    "last_evaluated": f"""
        SELECT s.run_id, max(s.round) AS round FROM scores s
        WHERE s.run_id IN {CHOSEN} AND s.split=:split AND s.point=:point GROUP BY s.run_id
        """,
    "evaluated": """
        SELECT round FROM scores WHERE run_id=:run AND split=:split AND point=:point ORDER BY round
        """,
    "curves": f"""
        SELECT run_id, round, personal_mean, personal_weighted, personal_worst, global_mean, classes_mean
        FROM scores
        WHERE run_id IN {CHOSEN} AND split=:split AND point=:point ORDER BY run_id, round
        """,
    "own_accuracy": """
        SELECT round, model AS client, correct, total, loss FROM accuracy
        WHERE run_id=:run AND split=:split AND point=:point AND model=test_set ORDER BY round, model
        """,
    "rounds": f"SELECT * FROM rounds WHERE run_id IN {CHOSEN} ORDER BY run_id, round",
    "traffic": f"""
        SELECT run_id, sum(bytes_up) AS up, sum(bytes_down) AS down FROM rounds WHERE run_id IN {CHOSEN}
        GROUP BY run_id
        """,
    "client_rounds": """
        SELECT round, client, steps, train_loss, bytes_up, bytes_down FROM client_rounds
        WHERE run_id=:run ORDER BY round, client
        """,
    # a name's first row tells whether it is a matrix; the names are found one after another, not by a scan
    "diagnostic_names": """
        WITH RECURSIVE found(name) AS (
          SELECT min(name) FROM diagnostics WHERE run_id=:run
          UNION ALL
          SELECT (SELECT min(d.name) FROM diagnostics d WHERE d.run_id=:run AND d.name>found.name)
          FROM found WHERE found.name IS NOT NULL)
        SELECT name, (SELECT d.b FROM diagnostics d WHERE d.run_id=:run AND d.name=found.name LIMIT 1) AS b
        FROM found WHERE name IS NOT NULL
        """,
    "diagnostic_means": f"""
        SELECT run_id, round, avg(value) AS mean, min(value) AS low, max(value) AS high, count(value) AS count
        FROM diagnostics WHERE run_id IN {CHOSEN} AND name=:name AND value IS NOT NULL
        GROUP BY run_id, round ORDER BY run_id, round
        """,
    "diagnostics": """
        SELECT round, a, b, value FROM diagnostics WHERE run_id=:run AND name=:name ORDER BY round, a, b
        """,
    "diagnostics_at": """
        SELECT round, a, b, value FROM diagnostics WHERE run_id=:run AND name=:name AND round=(
          SELECT max(round) FROM diagnostics WHERE run_id=:run AND name=:name AND round<=:round) ORDER BY a, b
        """,
    "cells": f"""
        SELECT {NAMED_CELL} FROM runs r
        CROSS JOIN accuracy a ON a.run_id=r.id AND a.split=:split AND a.point=:point {NAMES}
        WHERE r.id IN {CHOSEN} ORDER BY a.run_id, a.round, a.model, a.test_set
        """,
    "cells_at": f"""
        SELECT {NAMED_CELL} FROM json_each(:pairs) p
        CROSS JOIN accuracy a ON a.run_id=json_extract(p.value, '$[0]') AND a.split=:split AND a.point=:point
          AND a.round=json_extract(p.value, '$[1]') {NAMES}
        ORDER BY a.run_id, a.model, a.test_set
        """,
    "peak_memory": """
        SELECT id, peak_memory FROM runs WHERE peak_memory IS NOT NULL ORDER BY id DESC LIMIT :latest
        """,
    "measured": f"""
        SELECT {NAMED_CELL} FROM json_each(:pairs) p
        CROSS JOIN accuracy a ON a.run_id=json_extract(p.value, '$[0]') AND a.split=:split AND a.point=:point
          AND a.round=json_extract(p.value, '$[1]') AND (a.model=a.test_set OR a.model=0) {NAMES}
        WHERE a.model<>0 OR t.kind='domain' ORDER BY a.run_id, a.round, a.model, a.test_set
        """,
}
