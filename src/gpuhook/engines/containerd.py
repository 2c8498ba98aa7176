"""containerd and its CRI plugin: `gpuhook configure containerd` and what `doctor` says of it.

containerd's configuration is read by `containerdconfig`, found by `containerdplaces`; what our runtime's table holds is
said by `containerdruntime`, and the templates of k3s and rke2 by `containerdtemplates`.
"""

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
from gpuhook.errors import GpuhookError

__all__ = ["check", "propose"]

DROP_IN = "conf.d/99-gpuhook.toml"  # beside the main file


def propose(host: Host, options: Options) -> Proposal:
    """Which values belong into which files of containerd.

    GpuhookError: `engine-not-found`, `engine-config-unreadable`, `engine-config-invalid`, `engine-config-conflict`
    (an import would hide what is written), `engine-option-unsupported`.
    """
    place, others = containerdplaces.find(host, options)
    _refuse(place, options)
    engine = containerdplaces.version_of(host, place)
    notes = [f"{containerdplaces.also(other)}: --config configures that instead" for other in others]
    if place.kind in containerdplaces.RANCHER:
        edits, more = containerdtemplates.propose(host, place, options)
        return Proposal("containerd", edits, containerdplaces.restart(host, place), (*more, *notes))
    loaded = containerdconfig.load(host, place.config, engine)
    notes[:0] = [*loaded.problems, *containerdruntime.notes(loaded, options)]
    if containerdplaces.cri_disabled(host, place):
        notes.insert(0, f"{place.config} disables the CRI plugin: Kubernetes can't use this containerd")
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
