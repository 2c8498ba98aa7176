"""containerd and its CRI plugin: `gpuhook configure containerd` and what `doctor` says of it.

containerd's configuration is read by `containerdconfig`, found by `containerdplaces`; what our runtime's table holds is
said by `containerdruntime`, and the templates of k3s and rke2 by `containerdtemplates`.
"""

import re
from posixpath import isabs

from gpuhook.engines import (
    containerdconfig,
    containerddropin,
    containerdplaces,
    containerdruntime,
    containerdtemplates,
)
from gpuhook.engines.containerdcheck import check
from gpuhook.engines.containerdplaces import Place
from gpuhook.engines.host import Host
from gpuhook.engines.model import Options, Proposal
from gpuhook.errors import GpuhookError, shown

__all__ = ["check", "propose"]

DROP_IN = "conf.d/99-gpuhook.toml"  # beside the main file


def propose(host: Host, options: Options) -> Proposal:
    """Which values belong into which files of containerd.

    GpuhookError: `engine-not-found`, `engine-config-unreadable`, `engine-config-invalid`, `engine-config-conflict`
    (an import would hide what is written), `engine-option-unsupported`.
    """
    place, others = containerdplaces.find(host, options)
    _refuse(place, options)
    engine = containerdconfig.engine_version(containerdplaces.version_of(host, place))
    notes = [
        f"this host also has the containerd of {other.describe()}: --config configures that instead" for other in others
    ]
    if place.kind in containerdplaces.RANCHER:
        edits, more = containerdtemplates.propose(host, place, options)
        return Proposal("containerd", edits, containerdplaces.restart(host, place), (*more, *notes))
    loaded = containerdconfig.load(host, place.config, engine)
    notes[:0] = [*loaded.problems, *containerdruntime.notes(loaded, options)]
    if containerdplaces.cri_disabled(host, place):
        notes.insert(
            0, f"{place.config} disables the CRI plugin: Kubernetes can't use this containerd, nor this runtime"
        )
    ours = containerddropin.ours(loaded)
    if options.drop_in is None and ours is None:
        edits = containerddropin.main(host, loaded, options)
    else:
        path = options.drop_in or (ours.path if ours else f"{place.directory}/{DROP_IN}")
        edits, more = containerddropin.drop_in(host, loaded, options, path)
        notes[:0] = more
    return Proposal("containerd", edits, containerdplaces.restart(host, place), tuple(dict.fromkeys(notes)))


def _refuse(place: Place, options: Options) -> None:
    if options.hook_only:
        raise GpuhookError(
            "engine-option-unsupported",
            "containerd reads no directory of OCI hooks, so --hook means nothing to it",
            "leave --hook out: gpuhook's runtime puts the hook into the container's specification",
        )
    if place.kind == "docker":
        raise GpuhookError(
            "engine-config-conflict",
            f"{place.config} is of the containerd that docker starts for itself, and writes anew each time",
            "gpuhook configure docker",
        )
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", options.runtime_name):
        raise GpuhookError(
            "engine-option-unsupported",
            f"--runtime-name {shown(options.runtime_name)} is no name that a RuntimeClass could have as its handler",
            "use letters, digits and -",
        )
    if options.drop_in and not isabs(options.drop_in):
        raise GpuhookError(
            "engine-option-unsupported",
            f"--drop-in {shown(options.drop_in)} is no absolute path",
            "write the whole path of the file that containerd is to import",
        )
