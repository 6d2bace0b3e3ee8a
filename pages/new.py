"""The New page: configure an experiment, see its partition and plan, and launch it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import streamlit as st

from fedcore import devices, jobs
from fedcore.config import Experiment, dumps, loads
from fedcore.config.field_names import field_phrase, size_text, value_text
from fedcore.data.slow_work import NotPrepared
from fedcore.engine.plan import Plan
from fedcore.errors import FedLensError
from fedcore.jobs import forecast
from fedcore.methods.base import Method
from fedcore.methods.class_texts import EDITOR
from fedcore.methods.consent import NotAgreed
from fedcore.papers import guide
from fedcore.papers.experiments import DEMO, preset, published, title
from fedcore.plots.partition import partition_picture
from fedcore.progress import duration
from pages.forms import (
    class_texts,
    cohorts,
    domains,
    drafts,
    fields,
    inputs,
    method_files,
    method_table,
    own_data,
    planning,
    sweep_form,
)
from pages.forms.slots import Slots, name_in_form
from pages.widgets import charts, markup, session

MANY_RUNS, LONG_SECONDS = 20, 8 * 3600  # a larger plan is launched only when confirmed
ABOUT_DEMO = "It takes about 2 minutes on two CPU cores. Data and model are built in: nothing to download."


def presets() -> None:
    """Draw a card for the demonstration, and one for the papers' tables and figures."""
    left, right = st.columns(2)
    with left, st.container(border=True, height="stretch"):
        demo = preset(DEMO)
        st.markdown(f"**{markup.md(demo.name)}**")
        st.caption(f"{len(demo.methods)} methods, {demo.rounds} rounds. {ABOUT_DEMO}")
        _use_button(DEMO, "preset_demo")
    with right, st.container(border=True, height="stretch"):
        st.markdown("**Reproduce a table or figure of a paper**")
        st.caption(
            "Settings of the published experiments. They need the original data and a full-size CLIP model."
        )
        tables = {name: title(name) for name in published()}
        current = drafts.form().origin.removeprefix("preset:")
        table = st.selectbox(
            "Table",
            tables,
            index=list(tables).index(current) if current in tables else None,
            format_func=lambda name: tables[name],
            placeholder="Choose one",
            key="paper",
            label_visibility="collapsed",
        )
        _use_button(table, "preset_paper")


def _use_button(name: str | None, key: str) -> None:
    """Draw the button that fills the form from a preset; ``name`` is None before one is chosen."""
    in_form = name is not None and drafts.form().origin == f"preset:{name}"
    label = "In use" if in_form else "Use"
    if st.button(label, key=key, disabled=name is None or in_form, help="Fill the form with these settings"):
        use_preset(str(name))


def use_preset(name: str) -> None:
    """Fill the form from a preset and write its name to the URL."""
    try:
        drafts.fill(preset(name), f"preset:{name}")
    except FedLensError as error:
        markup.show_error(error)
        return
    st.query_params.pop("clone", None)
    st.query_params["preset"] = name
    st.rerun()


def method_fields(data: Mapping[str, object], key: str, slots: Slots) -> list[dict[str, object]]:
    """Draw the choice of methods and the hyper-parameters of each; ``data`` is the form's data part."""
    known = drafts.known_methods()
    st.multiselect(
        "Methods",
        list(known),
        format_func=lambda n: known[n].about.title,
        key=f"{key}.choice",
        default=list(dict.fromkeys(e.name for e in drafts.form().methods if e.name in known)),
        on_change=drafts.sync_methods,
        args=(f"{key}.choice",),
        wrap=True,
    )
    slots.place("methods")
    for i, entry in enumerate(drafts.form().methods):
        method = known.get(entry.name)
        if method is None:
            slots.place(f"methods.{i}.name")
            continue
        box = st.expander(  # its label must stay as it is: with another label it would be another, closed one
            f"{markup.md(entry.title or method.about.title)}: hyper-parameters",
            icon=":material/tune:",
            key=f"{key}.{entry.uid}.box",
            on_change="rerun",
        )
        if box.open:  # a closed form is not drawn: a hundred widgets would take the browser a second
            with box:
                entry.open()
                method_form(entry, method, data, f"{key}.{entry.uid}.{entry.version}", slots)
        else:
            entry.is_open = False
            paper = inputs.paper_values(method.Config)
            differing = {k: v for k, v in entry.config.items() if k not in paper or paper[k] != v}
            if differing and not method_table.is_drawn(drafts.form().methods):
                named = {f"methods.{entry.name}.{k}": v for k, v in differing.items()}
                values = ", ".join(f"{field_phrase(k)} {value_text(k, v)}" for k, v in named.items())
                st.caption(f"Changed from the paper: {markup.md(values)}")
        slots.place(f"methods.{i}")
    method_table.draw(drafts.form().methods, known)
    return [e.content() for e in drafts.form().methods]


def method_form(
    entry: drafts.MethodDraft, method: type[Method], data: Mapping[str, object], key: str, slots: Slots
) -> None:
    """Draw a method's name and hyper-parameters, and keep the typed values in ``entry``."""
    st.caption(f"{markup.md(method.about.summary)} {markup.md(method.about.source)}.")
    text = guide.sections().get(entry.name)
    if text:
        more = st.popover(
            "Equations and notes on the paper",
            icon=":material/menu_book:",
            width="content",
            key=f"{key}.guide",
            on_change="rerun",
        )
        if more.open:
            more.markdown(text)
    label = st.text_input(
        "Name in tables", value=entry.start_label or "", placeholder=method.about.title, key=f"{key}.label"
    )
    entry.label = label.strip() or None
    editors = {EDITOR: partial(class_texts.editor, data, slots)}
    entry.config = inputs.config_form(method.Config, entry.start, key, editors, f"methods.{entry.name}")
    buttons = (
        ("Reset to the paper's values", ":material/restart_alt:", drafts.reset),
        ("Add a variant", ":material/content_copy:", drafts.add_variant),
        ("Remove", ":material/close:", drafts.remove),
    )
    with st.container(horizontal=True):
        for text, icon, act in buttons:
            st.button(text, key=f"{key}.{text}", on_click=act, args=(entry.uid,), icon=icon)


def draw_partition(plan: Plan) -> None:
    """Draw the partition of the planned experiment."""
    drawn = partition_picture(plan.counts, plan.clients, plan.classes, session.theme())
    if st.session_state.get("as_tables"):
        table = {"client": list(plan.clients)}
        table.update({c: plan.counts[:, j].tolist() for j, c in enumerate(plan.classes)})
        st.dataframe(table, hide_index=True, key="partition_table")
    else:
        st.html(drawn.html)
    st.caption(markup.md(drawn.alt))
    if plan.runs[0].held_out is not None:
        st.caption(f"Shown for the runs that hold out {markup.md(plan.runs[0].held_out)}.")
    if len(plan.clients) > 1:
        st.caption(
            f"Heterogeneity {plan.heterogeneity:.2f}; mean label entropy {plan.entropy:.2f} of at most "
            f"{plan.max_entropy:.2f} bits.",
            help="Heterogeneity is the mean Jensen-Shannon distance between the training labels of two "
            "clients, from 0 (equal class shares) to 1 (no class in common). A client's label entropy is "
            "highest with equal class shares.",
        )


def plan_line(experiment: Experiment, plan: Plan) -> None:
    """Show how many runs the experiment has, what they cost, and the plan's warnings."""
    count = len(plan.runs)
    parts = [f"{len(experiment.methods)} method{'s' * (len(experiment.methods) != 1)}"]
    parts.append(f"{len(experiment.seeds)} seed{'s' * (len(experiment.seeds) != 1)}")
    if experiment.held_out:
        held = len({r.held_out for r in plan.runs})
        parts.append(f"{held} held-out domain{'s' * (held != 1)}")
    swept = [f"{len(v)} values of {markup.md(field_phrase(path))}" for path, v in experiment.sweep.items()]
    product = not any(path.startswith("methods.") for path in experiment.sweep)  # else not for every method
    counted = " x ".join([*parts, *swept]) if product else ", ".join([" x ".join(parts), *swept])
    rounds = sorted({r.rounds for r in plan.runs})
    shown = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    shown += " round" if rounds == [1] else " rounds"
    runs_ = f"{count} run{'s' * (count != 1)}"
    store = session.store()
    disk = forecast.disk(store.path, planning.precedents(store), plan)
    st.markdown(f"**{counted}{' =' if product else ':'} {runs_}**, {shown}{costs(plan, disk)}.")
    for warning in plan.warnings:
        st.warning(markup.md(warning), icon=":material/info:")
    lack = forecast.lack_of_room(store.path, disk)
    if lack is not None:
        st.warning(markup.md(f"{lack}."), icon=":material/hard_drive:")


def costs(plan: Plan, disk: forecast.Disk) -> str:
    """Describe the time, disk and memory that a plan needs, as far as they are known."""
    known = planning.precedents(session.store())
    seconds, memory = forecast.seconds(known, plan.runs), forecast.memory(known, plan.runs)
    text = f", about {duration(seconds)} on this machine" if seconds is not None else ""
    if disk.size:
        text += f", {'about' if disk.whole else 'at least'} {size_text(disk.size)} on disk"
    if memory is not None:
        text += f", up to {memory / 1e9:.1f} GB of memory"
    return text + ("" if seconds is not None else "; the time is unknown until the first rounds have run")


def launch(experiment: Experiment | None, plan: Plan | None) -> None:
    """Draw the Launch button, and before a large plan a box to confirm it."""
    sure = True
    if plan is not None:
        seconds = forecast.seconds(planning.precedents(session.store()), plan.runs) or 0
        if len(plan.runs) > MANY_RUNS or seconds > LONG_SECONDS:
            sure = st.checkbox(f"Yes, queue all {len(plan.runs)} runs", key="launch_sure")
    ready = plan is not None and experiment is not None and sure and session.writable()
    with st.container(horizontal=True, vertical_alignment="center"):
        pressed = st.button(
            "Launch", type="primary", icon=":material/rocket_launch:", disabled=not ready, key="launch"
        )
    if pressed and experiment is not None and plan is not None:
        device = st.session_state.get("new_device") or "auto"
        try:
            created = session.store().experiments.create(experiment, plan.runs, device=device)
            jobs.ensure_worker(session.store())
        except FedLensError as error:
            markup.show_error(error)
            return
        st.switch_page("pages/live.py", query_params={"id": str(created.experiment_id)})


def toml_box(experiment: Experiment | None, slots: Slots) -> None:
    """Draw the expander that shows the experiment as TOML and fills the form from a file."""
    box = st.expander(
        "This experiment as TOML", icon=":material/description:", key="toml_box", on_change="rerun"
    )
    if not box.open:
        return
    with box:
        if experiment is not None:
            text = dumps(experiment)
            st.code(text, language="toml", wrap_lines=True)
            st.download_button(
                "Download", text, "experiment.toml", on_click="ignore", icon=":material/download:"
            )
            st.caption("To run it on the command line: `fedlens run experiment.toml`")
        upload = st.file_uploader(
            "Fill the form from a TOML file", type="toml", key=f"toml_{drafts.form().version}"
        )
        if upload is not None:
            try:
                drafts.fill(loads(upload.getvalue().decode("utf-8"), upload.name), "file")
            except UnicodeDecodeError:
                slots.refuse("TOML file", FedLensError("the file is not UTF-8 text; save it as UTF-8"))
            except FedLensError as error:
                slots.refuse("TOML file", error)
            else:
                for name in ("preset", "clone"):  # or the URL would fill the form again
                    st.query_params.pop(name, None)
                st.rerun()


def device_field() -> None:
    """Draw the choice of a device where there is more than one."""
    names = {d.id: d.name for d in devices.list_devices()}
    if len(names) > 1:
        st.selectbox(
            "Device",
            ["auto", *names],
            format_func=lambda i: names.get(i, "first free device"),
            key="new_device",
        )


def configuration(draft: Experiment, key: str, slots: Slots) -> dict[str, Any]:
    """Draw the fields of the experiment below its name, and return their values."""
    values: dict[str, Any] = {}
    st.header("Data and clients")
    values["data"] = fields.data_fields(draft.data, f"{key}.data", slots)
    slots.place("data")
    values["partition"] = fields.partition_fields(draft.partition, f"{key}.partition", slots)
    slots.place("partition")
    st.header("Model and methods")
    values["backbone"] = fields.backbone_fields(draft.backbone, f"{key}.backbone", slots)
    slots.place("backbone")
    values["cohorts"] = cohorts.cohort_fields(values["backbone"], key, slots)
    values["methods"] = method_fields(values["data"], key, slots)
    st.header("Schedule")
    values.update(fields.schedule_fields(draft, values["data"], key, slots))
    device_field()
    values["sweep"] = sweep_form.sweep_fields(values, key, slots)
    values.update(notes=draft.notes, tags=list(draft.tags))
    values["reproduces"] = [r.model_dump() for r in draft.reproduces]
    return values


def partition_and_plan(values: Mapping[str, Any], slots: Slots) -> None:
    """Draw the partition and the plan of the form's values, and the button that launches them."""
    st.header("Partition")
    experiment, plan, error = planning.plan_form(values)
    if experiment is not None:
        drafts.keep(experiment)
    shown = planning.plan_to_draw(
        values["data"], plan if error is None else planning.preview_partition(values, error)
    )
    if shown is not None:
        if domains.remember_planned(values["data"], shown.domains):
            st.rerun()  # fields above offer them
        st.session_state["planned_clients"] = len(shown.clients)
        draw_partition(shown)
    else:
        waits = isinstance(error, NotPrepared)
        st.caption(f"Appears once the {'data set is checked' if waits else 'experiment is valid'}.")
    with st.container(key="new_plan"):  # it stays in view while the form is scrolled
        plan_and_launch(values, slots, experiment, plan, error)


def plan_and_launch(
    values: Mapping[str, Any],
    slots: Slots,
    experiment: Experiment | None,
    plan: Plan | None,
    error: FedLensError | None,
) -> None:
    """Draw the plan of the form's values or what prevents it, and the button that launches it."""
    st.header("Plan")
    slots.place("")
    if isinstance(error, NotAgreed):
        method_files.ask(error)
    elif isinstance(error, NotPrepared):
        own_data.check_here(values["data"], error)
    elif error is not None:
        slots.show(error)
    elif experiment is not None and plan is not None:
        plan_line(experiment, plan)
    planning.show_pending()
    button = st.container()
    charts.table_switch()
    toml_box(experiment, slots)
    with button:
        wrong = list(dict.fromkeys(slots.refused))
        if error is not None and error.field and not isinstance(error, NotAgreed | NotPrepared):
            wrong.insert(0, name_in_form(error.field))
        if wrong:
            st.caption(f"Not ready: see {markup.md(', '.join(wrong))}.")
        launch(experiment, None if slots.refused else plan)


def page() -> None:
    """Draw the page."""
    st.title("New experiment")
    drafts.restore()
    message = drafts.from_url()
    if message:
        markup.show_error(message)
    presets()
    draft, key, slots = drafts.form().experiment, f"new{drafts.form().version}", Slots()
    name = fields.name_field(draft, key)
    slots.place("name")
    left, right = st.columns([3, 2], gap="large")
    with left:
        values = {"name": name, **configuration(draft, key, slots)}
    with right:
        partition_and_plan(values, slots)


session.through_app()
page()
