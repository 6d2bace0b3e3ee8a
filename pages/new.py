"""Configure an experiment and launch it: presets, data, who holds what, CLIP, methods with their forms, rounds, seeds."""

from __future__ import annotations

import streamlit as st

from fedcore import runs
from fedcore.clip.facts import MINI_MODELS, config_files
from fedcore.config import BackboneConfig, DataConfig, Experiment, PartitionConfig, dumps, loads
from fedcore.data import catalog
from fedcore.engine.plan import Plan
from fedcore.errors import FedLensError
from fedcore.report import figures
from fedcore.report.progress import duration
from fedcore.runs import devices
from pages.parts import common, drafts, forms

COMMON_BACKBONES = ("ViT-B-32", "ViT-B-16", "ViT-L-14", "RN50", "RN101")


class Slots:
    """A place under every field for what is wrong with it."""

    def __init__(self) -> None:
        self._places: dict[str, st.delta_generator.DeltaGenerator] = {}

    def place(self, field: str) -> None:
        """Keep room for complaints about a field, here."""
        self._places[field] = st.empty()

    def show(self, error: FedLensError) -> None:
        """Show an error beside its field; the nearest enclosing one that has a place."""
        field = error.field or ""
        while field and field not in self._places:
            field = field.rpartition(".")[0]
        place = self._places.get(field) or self._places[""]
        common.show_error(error, place)


def presets() -> None:
    """Cards of ready experiments."""
    cards = drafts.presets()
    columns = st.columns(max(2, min(4, len(cards))))
    for i, card in enumerate(cards):
        with columns[i % len(columns)], st.container(border=True, height="stretch"):
            st.markdown(f"**{common.md(card.title)}**")
            st.caption(common.md(card.about))
            chosen = drafts.source() == f"preset:{card.name}"
            if st.button(
                "Chosen" if chosen else "Use",
                key=f"preset_{card.name}",
                type="secondary",
                disabled=chosen,
                help=f"Fill the form with {card.title}",
            ):
                drafts.use(drafts.read_preset(card.name), f"preset:{card.name}")
                st.query_params["preset"] = card.name
                st.query_params.pop("clone", None)
                st.rerun()


def data_fields(draft: DataConfig, key: str, slots: Slots) -> dict[str, object]:
    """Data set, folder, domains, split."""
    entries = {e.name: e for e in catalog.entries()}
    names = list(entries) if draft.name in entries else [draft.name, *entries]
    left, right = st.columns(2)
    with left:
        name = st.selectbox(
            "Data set",
            names,
            index=names.index(draft.name),
            format_func=lambda n: entries[n].title if n in entries else n,
            key=f"{key}.name",
        )
        slots.place("data.name")
    entry = entries.get(name)
    values: dict[str, object] = {"name": name}
    with right:
        if entry is not None and not entry.embedded:
            values["root"] = (
                st.text_input(
                    "Folder on this machine",
                    value=draft.root or "",
                    key=f"{key}.root",
                    placeholder="/data/pacs",
                    help=entry.how,
                ).strip()
                or None
            )
        else:
            splits = ["60/20/20", "80/20", "official"]
            values["split"] = st.selectbox(
                "Train / validation / test", splits, index=splits.index(draft.split), key=f"{key}.split"
            )
            slots.place("data.split")
        slots.place("data.root")
    if entry is not None:
        st.caption(common.md(f"{entry.source}. {entry.licence}."))
    with st.expander("More about the data: domains, prompt, few-shot"):
        known = list(entry.domains) if entry else []
        if known:
            kept = [d for d in draft.domains or () if d in known]
            chosen = st.multiselect(
                "Domains", known, default=kept, placeholder="all", key=f"{key}.domains.{name}"
            )
            values["domains"] = chosen or None
        elif draft.domains:
            values["domains"] = list(draft.domains)
        slots.place("data.domains")
        fields = DataConfig.model_fields
        for column, field in zip(st.columns(3), ("template", "shots", "split"), strict=True):
            if field not in values:
                with column:
                    values[field] = forms.field_widget(
                        field, fields[field], getattr(draft, field), f"{key}.{field}"
                    )
                    slots.place(f"data.{field}")
    return values


def partition_fields(draft: PartitionConfig, key: str, slots: Slots) -> dict[str, object]:
    """Only the fields that the kind of partition has."""
    kinds = {
        "domain": "By domain: clients of one domain each",
        "iid": "IID: at random",
        "dirichlet": "Dirichlet: skewed class shares",
        "pathological": "Pathological: disjoint classes",
    }
    kind = st.selectbox(
        "Who holds what",
        list(kinds),
        index=list(kinds).index(draft.kind),
        format_func=kinds.get,
        key=f"{key}.kind",
    )
    slots.place("partition.kind")
    names = {
        "domain": ("clients_per_domain", "alpha", "min_samples"),
        "iid": ("clients", "min_samples"),
        "dirichlet": ("clients", "alpha", "min_samples"),
        "pathological": ("clients", "classes_per_client", "min_samples"),
    }[kind]
    start = {"clients": draft.clients or 6, "classes_per_client": draft.classes_per_client or 2}
    if kind == "dirichlet":
        start["alpha"] = draft.alpha or 0.3
    values: dict[str, object] = {"kind": kind}
    for column, name in zip(st.columns(len(names)), names, strict=True):
        with column:
            info = PartitionConfig.model_fields[name]
            values[name] = forms.field_widget(
                name, info, start.get(name, getattr(draft, name)), f"{key}.{kind}.{name}"
            )
            slots.place(f"partition.{name}")
    return values


def backbone_fields(draft: BackboneConfig, key: str, slots: Slots) -> dict[str, object]:
    """CLIP: a miniature one that comes along, or any of open_clip's."""
    files = config_files()
    ordered = [*MINI_MODELS, *(n for n in COMMON_BACKBONES if n in files)]
    names = [*ordered, *(n for n in files if n not in ordered)]
    names = names if draft.name in names else [draft.name, *names]
    left, middle, right = st.columns([2, 2, 1])
    with left:
        name = st.selectbox(
            "CLIP backbone",
            names,
            index=names.index(draft.name),
            key=f"{key}.name",
            help="mini-vit and mini-rn come with FedLens; the others are open_clip's and need their weights",
        )
        slots.place("backbone.name")
    values: dict[str, object] = {"name": name}
    if name not in MINI_MODELS:
        fields = BackboneConfig.model_fields
        with middle:
            values["pretrained"] = forms.field_widget(
                "pretrained",
                fields["pretrained"],
                draft.pretrained,
                f"{key}.pretrained",
                "Weights: tag or file",
            )
            slots.place("backbone.pretrained")
        with right:
            values["precision"] = forms.field_widget(
                "precision", fields["precision"], draft.precision, f"{key}.precision"
            )
            slots.place("backbone.precision")
    return values


def method_fields(key: str, slots: Slots) -> list[dict[str, object]]:
    """Which methods, and behind an expander the hyper-parameters of each."""
    known = drafts.methods()
    st.multiselect(
        "Methods",
        list(known),
        format_func=lambda n: known[n].title,
        key=f"{key}.choice",
        default=list(dict.fromkeys(e.name for e in drafts.entries() if e.name in known)),
        on_change=drafts.sync_methods,
        args=(f"{key}.choice",),
    )
    slots.place("methods")
    given = []
    for i, entry in enumerate(drafts.entries()):
        method = known.get(entry.name)
        title = entry.label or (method.title if method else entry.name)
        with st.expander(f"{common.md(title)}: hyper-parameters", icon=":material/tune:"):
            if method is None:
                slots.place(f"methods.{i}.name")
                given.append({"name": entry.name, "config": entry.config})
                continue
            st.caption(f"{common.md(method.about)} {common.md(method.source)}.")
            label = st.text_input(
                "Name in tables",
                value=entry.label or "",
                placeholder=method.title,
                key=f"{key}.{entry.uid}.label",
            )
            form_key = f"{key}.{entry.uid}.{entry.version}"
            config = forms.config_form(method.Config, entry.config, form_key)
            with st.container(horizontal=True):
                st.button("Reset to paper", key=f"{form_key}.reset", on_click=drafts.reset, args=(entry.uid,),
                          icon=":material/restart_alt:")  # fmt: skip
                st.button("Add a variant", key=f"{form_key}.variant", on_click=drafts.add_variant,
                          args=(entry.uid, config), icon=":material/content_copy:",
                          help="The same method once more, with other hyper-parameters")  # fmt: skip
                st.button("Remove", key=f"{form_key}.remove", on_click=drafts.remove, args=(entry.uid,),
                          icon=":material/close:")  # fmt: skip
            given.append(
                {"name": entry.name, "label": label.strip() or None, "config": config, "file": entry.file}
            )
        slots.place(f"methods.{i}")
    return given


def schedule_fields(draft: Experiment, key: str, slots: Slots) -> dict[str, object]:
    """Rounds, seeds, participation, held-out domains."""
    fields = Experiment.model_fields
    values: dict[str, object] = {}
    columns = st.columns(4)
    with columns[0]:
        values["rounds"] = forms.field_widget("rounds", fields["rounds"], draft.rounds, f"{key}.rounds")
        slots.place("rounds")
    with columns[1]:
        text = st.text_input(
            "Seeds",
            value=", ".join(map(str, draft.seeds)),
            key=f"{key}.seeds",
            help="Whole numbers with commas: 1, 2, 3",
        )
        values["seeds"] = forms.from_text(text, [tuple], False)
        slots.place("seeds")
    with columns[2]:
        values["participation"] = forms.field_widget(
            "participation", fields["participation"], draft.participation, f"{key}.participation"
        )
        slots.place("participation")
    with columns[3]:
        text = st.text_input(
            "Held-out domains", value=", ".join(draft.held_out), key=f"{key}.held_out", placeholder="none",
            help="Leave-one-domain-out: one run per domain named here; write each for all",
        )  # fmt: skip
        values["held_out"] = [part.strip() for part in text.split(",") if part.strip()]
        slots.place("held_out")
    values["evaluate_every"] = draft.evaluate_every
    return values


def picture(found: Plan) -> None:
    """Who gets what, as it will be."""
    chart = figures.partition_chart(found.counts, found.clients, found.classes, common.look())
    table = {"client": list(found.clients)}
    table.update({c: found.counts[:, j].tolist() for j, c in enumerate(found.classes)})
    common.draw(chart, "partition", table)
    st.caption(common.md(chart.alt))


def plan_line(experiment: Experiment, found: Plan) -> None:
    """What a click on Launch will do."""
    count = len(found.runs)
    parts = [f"{len(experiment.methods)} method{'s' * (len(experiment.methods) != 1)}"]
    parts.append(f"{len(experiment.seeds)} seed{'s' * (len(experiment.seeds) != 1)}")
    if experiment.held_out:
        held = len({r.held_out for r in found.runs})
        parts.append(f"{held} held-out domain{'s' * (held != 1)}")
    seconds = drafts.estimate(found.runs)
    took = f", about {duration(seconds)} on this machine" if seconds is not None else ""
    first = "" if seconds is not None else "; how long it takes shows after the first rounds"
    st.markdown(
        f"**{' × '.join(parts)} = {count} run{'s' * (count != 1)}** of {experiment.rounds} rounds{took}{first}."  # noqa: RUF001
    )
    for warning in found.warnings:
        st.warning(common.md(warning), icon=":material/info:")


def launch(experiment: Experiment | None, found: Plan | None) -> None:
    """The button, and what it asks before a large plan."""
    long = found is not None and (len(found.runs) > 20 or (drafts.estimate(found.runs) or 0) > 8 * 3600)
    sure = not long or st.checkbox(
        f"Yes, queue all {len(found.runs) if found else 0} runs", key="launch_sure"
    )
    ready = found is not None and experiment is not None and sure and common.writable()
    with st.container(horizontal=True, vertical_alignment="center"):
        pressed = st.button(
            "Launch", type="primary", icon=":material/rocket_launch:", disabled=not ready, key="launch"
        )
    if pressed and experiment is not None and found is not None:
        device = st.session_state.get("new_device") or "auto"
        try:
            created = runs.create_experiment(common.database(), experiment, found.runs, device=device)
            runs.ensure_worker(common.database())
        except FedLensError as error:
            common.show_error(error)
            return
        st.switch_page("pages/live.py", query_params={"id": str(created.experiment_id)})


def toml_box(experiment: Experiment | None) -> None:
    """The experiment as a file: to keep, to share, to run on the command line."""
    with st.expander("This experiment as TOML", icon=":material/description:"):
        if experiment is not None:
            text = dumps(experiment)
            st.code(text, language="toml")
            st.download_button(
                "Download", text, "experiment.toml", on_click="ignore", icon=":material/download:"
            )
            st.caption("On the command line: `python -m fedcore run experiment.toml`")
        upload = st.file_uploader("Use a TOML file", type="toml", key=f"toml_{drafts.version()}")
        if upload is not None:
            try:
                drafts.use(loads(upload.getvalue().decode("utf-8"), upload.name), "file")
            except (FedLensError, UnicodeDecodeError) as error:
                common.show_error(
                    error if isinstance(error, FedLensError) else FedLensError("the file is not UTF-8 text")
                )
            else:
                st.rerun()


def device_field() -> None:
    """Where to train, if there is a choice."""
    found = {d.id: d.name for d in devices.list_devices()}
    if len(found) > 1:
        st.selectbox(
            "Device",
            ["auto", *found],
            format_func=lambda i: found.get(i, "first that is free"),
            key="new_device",
        )


def page() -> None:
    """The page."""
    st.title("New experiment")
    message = drafts.from_url()
    if message:
        common.show_error(message)
    presets()
    draft, key, slots = drafts.current(), f"new{drafts.version()}", Slots()
    values: dict[str, object] = {}
    values["name"] = st.text_input("Name", value=draft.name, key=f"{key}.title")
    slots.place("name")
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.subheader("Data and clients")
        values["data"] = data_fields(draft.data, f"{key}.data", slots)
        slots.place("data")
        values["partition"] = partition_fields(draft.partition, f"{key}.partition", slots)
        slots.place("partition")
        st.subheader("Model and methods")
        values["backbone"] = backbone_fields(draft.backbone, f"{key}.backbone", slots)
        slots.place("backbone")
        values["methods"] = method_fields(key, slots)
        st.subheader("Schedule")
        values.update(schedule_fields(draft, key, slots))
        device_field()
    values.update(notes=draft.notes, tags=list(draft.tags))
    with right:
        st.subheader("Who gets what")
        experiment, found, error = drafts.checked(values)
        if found is not None:
            picture(found)
        else:
            st.caption("Appears when the experiment fits together.")
        st.subheader("Plan")
        slots.place("")
        if error is not None:
            slots.show(error)
            if error.field:
                st.caption(f"Not ready: see {common.md(error.field)}.")
        elif experiment is not None and found is not None:
            plan_line(experiment, found)
        launch(experiment, found)
        common.table_switch()
        toml_box(experiment)


common.through_app()
page()
