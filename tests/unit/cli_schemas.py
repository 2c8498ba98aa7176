"""JSON schemas of every document that a command prints with --json. Nothing more and nothing less is in one: a field
that is added or lost is a change of an interface, and belongs here."""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number", "minimum": 0}


def maybe(schema: Schema) -> Schema:
    """Or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def many(schema: Schema) -> Schema:
    """A list of it."""
    return {"type": "array", "items": schema}


def these(possible: dict[str, Schema] | None = None, /, **fields: Schema) -> Schema:
    """An object with just these fields; those of `possible` may be missing."""
    properties = {**fields, **(possible or {})}
    return {"type": "object", "properties": properties, "required": list(fields), "additionalProperties": False}


FAILURE = these(reference=TEXT, message=TEXT, hint=TEXT, exit_code=COUNT)
VERSION: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)*$"}
GPU = these(
    index=COUNT,
    uuid=TEXT,
    bus_id=TEXT,
    minor={"type": "integer"},
    name=TEXT,
    brand=TEXT,
    arch=TEXT,
    error=TEXT,
    mig=FLAG,
    mig_devices=many(these(index=COUNT, uuid=TEXT, gpu_instance=COUNT, compute_instance=COUNT)),
)
DRIVER = these(version=VERSION, cuda=VERSION, cuda_assumed=FLAG, machine=TEXT, record=TEXT)
IMAGE = these(
    loader=TEXT, machine=TEXT, libdir=TEXT, libdir32=TEXT, compat=TEXT, compat_version=TEXT, covered=many(TEXT)
)
PLAN = {
    "driver": DRIVER,
    "image": IMAGE,
    "mounts": many(these(source=TEXT, target=TEXT, kind=TEXT, optional=FLAG, present=FLAG, reason=TEXT, left_out=TEXT)),
    "links": many(these(target=TEXT, text=TEXT, reason=TEXT)),
    "files": many(these(target=TEXT, text=TEXT, reason=TEXT)),
    "loader_cache": maybe(
        these(
            entries=many(these(name=TEXT, path=TEXT)),
            entries32=many(these(name=TEXT, path=TEXT)),
            directories=many(TEXT),
            reason=TEXT,
        )
    ),
}
OUTCOME: Schema = {"enum": ["granted", "nothing", "refused"]}

EXPLAIN = these(
    {
        **PLAN,
        "libcuda": maybe(these({}, path=TEXT, why=TEXT, **{"from": {"enum": ["host", "image"]}})),
        "why_not": TEXT,
        "request": {"type": "object", "required": ["by", "value", "devices", "capabilities", "requirements", "policy"]},
        "host_gpus": many(GPU),
        "gpus": many(GPU),
        "verdict": these(policy=TEXT, met=FLAG, looked=FLAG),
        "verdicts": many(
            these(
                origin=TEXT,
                met=FLAG,
                alternative=TEXT,
                alternatives=COUNT,
                outcomes=many(these(gpu=maybe(COUNT), way=TEXT, failed=many(TEXT), lacking=TEXT)),
            )
        ),
        "nodes": many(
            these(
                path=TEXT,
                major=COUNT,
                minor=COUNT,
                mode={"type": "string", "pattern": "^0[0-7]{3}$"},
                missing=FLAG,
            )
        ),
        "hook": these(stage=TEXT, entry={"type": "object", "required": ["path", "args", "env"]}, replaces=many(TEXT)),
    },
    outcome=OUTCOME,
    container=these(config=TEXT, image_config=TEXT, root=TEXT, image_looked_at=FLAG, privileged=FLAG, sandbox=FLAG),
    warnings=many(TEXT),
    notes=many(TEXT),
    error=maybe(FAILURE),
)
HOOK = these(
    {**PLAN, "why_not": TEXT},
    outcome=OUTCOME,
    state=these(id=TEXT, pid={"type": "integer", "minimum": 2}, bundle=TEXT),
    bundle=TEXT,
    orders=maybe(
        these(
            {"from": TEXT},
            record=TEXT,
            root=TEXT,
            capabilities=many(TEXT),
            tmpfs=many(TEXT),
            compat=FLAG,
            nodes=many(TEXT),
            gpus=many(TEXT),
            rights=many(TEXT),
            proc=FLAG,
            label=TEXT,
        )
    ),
    warnings=many(TEXT),
    error=maybe(FAILURE),
)
RECORD_SHOW = these(
    path=TEXT,
    state={"enum": ["none", "current", "outdated", "error", "unusable"]},
    changed=many(TEXT),
    age_seconds=maybe(NUMBER),
    life_seconds=maybe(NUMBER),
    id=maybe(TEXT),
    driver=maybe(these(version=VERSION, cuda=VERSION, cuda_assumed=FLAG, machine=TEXT)),
    gpus=many(GPU),
    files={"type": "object", "additionalProperties": COUNT},
    left_out=many(these(path=TEXT, reason=TEXT)),
    error=maybe(FAILURE),
)
RECORD_REFRESH = these(
    path=TEXT,
    seconds=NUMBER,
    id=maybe(TEXT),
    before=maybe(TEXT),
    changes=many(these(what=TEXT, before=maybe(TEXT), after=maybe(TEXT))),
    error=maybe(FAILURE),
)
LIST = these(
    driver=VERSION,
    files=many(
        these(
            capability=TEXT,
            kind=TEXT,
            path=TEXT,
            name=TEXT,
            soname=TEXT,
            links=many(TEXT),
            bits={"enum": [0, 32, 64]},
            target=TEXT,
        )
    ),
    left_out=many(these(path=TEXT, reason=TEXT)),
)
INFO = these(
    gpuhook=TEXT,
    kernel=TEXT,
    machine=TEXT,
    config=these(path=TEXT, exists=FLAG),
    runtime=maybe(TEXT),
    driver=maybe(these(version=VERSION, cuda=VERSION, cuda_assumed=FLAG, machine=TEXT, files=COUNT)),
    gpus=many(GPU),
    record=maybe(these(id=TEXT, path=TEXT, age_seconds=maybe(NUMBER))),
    errors=many(FAILURE),
)
FAILED = these(error=FAILURE)
CHECK: Schema = {
    "anyOf": [
        these(met={"const": False}, error=FAILURE),
        these(
            met=FLAG,
            policy=TEXT,
            needed=TEXT,
            alternatives=COUNT,
            found=these(
                driver=TEXT,
                cuda=VERSION,
                cuda_assumed=FLAG,
                gpus=many(these(index=COUNT, name=TEXT, brand=TEXT, arch=TEXT)),
            ),
            ways=many(TEXT),
            notes=many(TEXT),
            warnings=many(TEXT),
            error=maybe(FAILURE),
        ),
    ]
}
CONFIG_SHOW = these(
    path=TEXT,
    keys={
        "type": "object",
        "minProperties": 10,
        "additionalProperties": these(value={}, source={"enum": ["file", "default"]}),
    },
)
CONFIG_IMPORT = these(
    source=TEXT,
    path=TEXT,
    changed=FLAG,
    dry_run=FLAG,
    keys=many(
        these(
            key=TEXT,
            value=TEXT,
            outcome={"enum": ["carried", "same", "kept", "left", "unknown", "invalid"]},
            target=TEXT,
            wanted=TEXT,
            why=TEXT,
        )
    ),
    images=maybe(
        these(
            looked_at=COUNT,
            refused=many(
                these(engine=TEXT, image=TEXT, reference=TEXT, message=TEXT, hint=TEXT, exit_code=COUNT),
            ),
            notes=many(TEXT),
        )
    ),
    diff=TEXT,
    error={"type": "null"},
)
FINDING = these(
    level={"enum": ["ok", "note", "warning", "problem"]},
    check={"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"},
    message=TEXT,
    hint=TEXT,
)
DOCTOR = these(
    works=FLAG,
    host={**many(FINDING), "minItems": 5},
    engines=many(
        these(engine={"enum": ["docker", "containerd", "crio", "podman"]}, works=FLAG, why=TEXT, findings=many(FINDING))
    ),
    error=maybe(FAILURE),
)
RESTART = these(needed=FLAG, command=many(TEXT), sentence=TEXT, done=FLAG, why_not=TEXT)
CONFIGURE = these(
    engine={"enum": ["docker", "containerd", "crio", "podman"]},
    changed=FLAG,
    dry_run=FLAG,
    files=many(
        these(
            path=TEXT,
            outcome={"enum": ["same", "made", "changed", "restored", "removed", "taken-out", "gone", "kept"]},
            changed=FLAG,
            diff=TEXT,
        )
    ),
    restart=RESTART,
    other_restarts=many(RESTART),
    notes=many(TEXT),
    warnings=many(TEXT),
    error=maybe(FAILURE),
)
