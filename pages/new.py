"""The New page: configure an experiment, see its partition and plan, and launch it."""

from collections.abc import Mapping
from typing import Any

import streamlit as st

from fedcore.base import devices
from fedcore.base.consent import NotAgreed
from fedcore.base.errors import FedLensError
from fedcore.base.progress import NotPrepared
from fedcore.config import Experiment, dumps, loads
from fedcore.papers import adding
from fedcore.papers.experiments import DEMO, DEMO_TIME, preset, protocols, published, title
from pages.forms import dataset, drafts, fields, library, methods, plan
from pages.forms.inputs import FieldErrors, name_in_form
from pages.widgets import charts, markup, session


def presets() -> None:
    """Draw a row with the demonstration, the protocols, and the papers' tables and figures."""
    demo = preset(DEMO)
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="right"):
        about = (
            f"{len(demo.methods)} methods, {demo.rounds} rounds. It takes {DEMO_TIME}. Nothing to download."
        )
        st.markdown(f"**{markup.md(demo.name)}**", width="content", help=about)
        _use_button(DEMO, "preset_demo")
        adding.use(session.store().path)
        tables = {name: title(name) for name in (*protocols(), *published())}
        current = drafts.form().origin.removeprefix("preset:")
        table = st.selectbox(
            "Table",
            list(tables),
            list(tables).index(current) if current in tables else None,
            tables.__getitem__,
            placeholder="Test new classes, ablate a method, or reproduce a paper's table",
            key="paper",
            label_visibility="collapsed",
            width=420,
            help="Protocols of generalisation and ablations on built-in data, and settings of the published "
            "experiments, which need the original data and a full-size CLIP",
        )
        _use_button(table, "preset_paper")


def _use_button(name: str | None, key: str) -> None:
    """Draw the button that fills the form from a preset; ``name`` is None before one is chosen."""
    in_form = name is not None and drafts.form().origin == f"preset:{name}"
    label = "In use" if in_form else "Use"
    if st.button(label, key=key, disabled=name is None or in_form, help="Fill the form with these settings"):
        with markup.errors_shown():
            drafts.fill(preset(str(name)), f"preset:{name}")
            st.query_params.pop("clone", None)
            st.query_params["preset"] = str(name)
            st.rerun()


def toml_box(experiment: Experiment | None, errors: FieldErrors) -> None:
    """Draw the expander that shows the experiment as TOML and fills the form from a file."""
    box = markup.opened("This experiment as TOML", "description", "toml_box")
    if box is None:
        return
    with box:
        if experiment is not None:
            text = dumps(experiment)
            st.code(text, language="toml", wrap_lines=True)
            markup.download("Download", text, "experiment.toml")
            st.caption("To run it on the command line: `fedlens run experiment.toml`")
        widget = f"toml_{drafts.form().version}"
        upload = st.file_uploader("Fill the form from a TOML file", type="toml", key=widget)
        if upload is not None:
            try:
                drafts.fill(loads(upload.getvalue().decode("utf-8"), upload.name), "file")
            except UnicodeDecodeError:
                errors.refuse("TOML file", FedLensError("the file is not UTF-8 text; save it as UTF-8"))
            except FedLensError as error:
                errors.refuse("TOML file", error)
            else:
                for name in ("preset", "clone"):  # or the URL would fill the form again
                    st.query_params.pop(name, None)
                st.rerun()


def configuration(draft: Experiment, key: str, errors: FieldErrors) -> dict[str, Any]:
    """Draw the fields of the experiment below its name, and return their values."""
    values = drafts.form().values  # as last typed, until each field is asked again below
    st.header("Data and clients")
    chosen, partition = st.container(), st.container()
    seldom = "More: domains, prompt, few-shot, class protocol, minimum samples, other test data"
    more = st.expander(seldom, key=f"{key}.data.more", on_change="rerun")
    with chosen:
        values["data"] = dataset.data_fields(draft.data, f"{key}.data", errors, more)
        errors.place("data")
        values["further_data"] = dataset.further_data_fields(draft, values["data"], key, errors)
    with chosen if draft.transfer else more:  # what is in use is in view
        values["transfer"] = dataset.transfer_field(draft, values["data"], key)
    with partition:
        values["partition"] = fields.partition_fields(
            draft.partition, values["data"], f"{key}.partition", errors, more
        )
        errors.place("transfer")
        errors.place("partition")
    st.header("Model and schedule")
    left, right = st.columns(2)
    values["backbone"] = fields.backbone_fields(
        draft.backbone, values["data"], f"{key}.backbone", errors, left
    )
    errors.place("backbone")
    fields.note_what_cannot_run(values["data"], values["backbone"])
    schedule = st.container()
    seldom = "More: held-out domains, participation, search, sweep, cohorts of clients"
    more = st.expander(seldom, key=f"{key}.more", on_change="rerun")
    with schedule:
        values.update(fields.schedule_fields(draft, values["data"], key, errors, right, more))
    with more:
        names = {"auto": "first free device"} | {d.id: d.name for d in devices.list_devices()}
        if len(names) > 2:
            st.selectbox("Device", list(names), format_func=names.__getitem__, key="new_device")
    with schedule if draft.cohorts else more:
        values["cohorts"] = fields.cohort_fields(values["backbone"], key, errors)
    with schedule if draft.tuning else more:
        values["tuning"] = fields.tuning_fields(draft, key, errors)
    values["sweep"] = fields.sweep_fields(values, key, errors, more)
    st.header("Methods")
    values["methods"] = methods.method_fields(values["data"], key, errors)
    values.update(notes=draft.notes, tags=list(draft.tags))
    values["reproduces"] = [r.model_dump() for r in draft.reproduces]
    return values


def partition_and_plan(values: Mapping[str, Any], errors: FieldErrors) -> None:
    """Draw the partition and the plan of the form's values, and the button that launches them."""
    st.header("Partition")
    experiment, made, error = plan.plan_form(values)
    if experiment is not None:
        drafts.remember(experiment)
    shown = plan.plan_to_draw(
        values["data"], made if error is None else plan.preview_partition(values, error)
    )
    if shown is not None:
        if dataset.remember_planned(values["data"], shown.domains):
            st.rerun()  # fields above offer them
        st.session_state["planned_clients"] = len(shown.clients)
        plan.draw_partition(shown)
    else:
        unchecked = isinstance(error, NotPrepared)
        st.caption(f"Appears once the {'data set is checked' if unchecked else 'experiment is valid'}.")
    with st.container(key="new_plan"):  # it stays in view while the form is scrolled
        st.header("Plan")
        errors.place("")
        if isinstance(error, NotAgreed):
            methods.ask_to_run_file(error)
        elif isinstance(error, NotPrepared):
            dataset.offer_check(values["data"], error)
        elif error is not None and error.field == "data.root" and not values["data"].get("root"):
            st.info("Enter the folder of the data set.", icon=":material/folder_open:")
        elif error is not None:
            errors.show(error)
        elif experiment is not None and made is not None:
            plan.plan_line(experiment, made)
            library.offer_model(experiment)
        plan.show_pending()
        button = st.container()  # filled last: the box below it may refuse a file
        charts.table_switch()
        toml_box(experiment, errors)
        with button:
            invalid = list(dict.fromkeys(errors.refused))
            if error is not None and error.field and not isinstance(error, NotAgreed | NotPrepared):
                invalid.insert(0, name_in_form(error.field))
            if invalid:
                st.caption(f"Not ready: see {markup.md(', '.join(invalid))}.")
            plan.launch_button(experiment, None if errors.refused else made)


def page() -> None:
    """Draw the page."""
    head = st.container(horizontal=True, vertical_alignment="center")
    head.title("New experiment", width="content")
    drafts.restore()
    with markup.errors_shown():
        drafts.from_url()
    with head:
        presets()
    draft, key, errors = drafts.form().experiment, f"new{drafts.form().version}", FieldErrors()
    left, right = st.columns([3, 2], gap="large")
    with right:
        name = fields.name_field(draft, key)
        errors.place("name")
    with left.container(key="new_form", gap="xsmall"):
        values = {"name": name, **configuration(draft, key, errors)}
    with right:
        partition_and_plan(values, errors)


session.through_app()
page()
