"""Every failure that a person can meet has a reference, an exit code of its own and a page section in docs/errors.md.

Hot path: imports nothing.
"""

# reference -> exit code. crun shows nothing of a hook but its exit code, so each failure has its own.
# Codes are stable: add, never renumber. 1 and 2 are left to the interpreter and to usage errors as everywhere.
EXIT_CODES = {
    "internal": 3,
    "usage": 2,
    "output-not-written": 4,
    # configuration and installation
    "config-invalid": 11,
    "config-untrusted": 12,
    "runtime-not-found": 13,
    "python-missing": 14,
    "installation-damaged": 15,
    # what the engine handed over
    "bundle-unreadable": 20,
    "spec-invalid": 21,
    "spec-not-written": 22,
    "state-invalid": 23,
    "dev-not-mounted": 24,
    "image-unreadable": 25,
    "checkpoint-unsupported": 26,
    # what the container asks for
    "device-invalid": 30,
    "device-unknown": 31,
    "device-ambiguous": 32,
    "device-lost": 33,
    "capability-unsupported": 34,
    "privilege-missing": 35,
    "requirement-syntax": 40,
    "requirement-not-met": 41,
    # the driver of this host
    "driver-not-found": 50,
    "driver-not-loaded": 51,
    "driver-version-mismatch": 52,
    "driver-changed": 53,
    "nvml-failed": 54,
    "nvml-timeout": 55,
    "nvml-crashed": 56,
    "library-missing": 57,
    "library-untrusted": 58,
    "node-missing": 59,
    "record-unavailable": 60,
    "record-not-written": 61,
    "driver-architecture": 62,
    # the container's root file system
    "rootfs-unsafe": 70,
    "rootfs-not-writable": 71,
    "rootfs-shared": 72,
    "rootfs-architecture": 73,
    "mount-failed": 74,
    "container-gone": 75,
    "deadline-passed": 76,
    "kernel-too-old": 77,
    "cgroup-failed": 78,
    # the engines' configuration
    "engine-not-found": 90,
    "engine-config-unreadable": 91,
    "engine-config-invalid": 92,
    "engine-config-conflict": 93,
    "engine-config-not-written": 94,
    "engine-option-unsupported": 95,
    "engine-undo-invalid": 96,
    "engine-restart-failed": 97,
    "doctor-problem": 98,
    # the simulator
    "sim-compiler-missing": 80,
    "sim-invalid": 81,
    "sim-failed": 82,
}


class GpuhookError(Exception):
    """A failure with what was wanted and found (`message`), what to do (`hint`) and a stable `reference`.

    `message` is one line; `hint` may have several, each shown under `fix:`. Nothing here ends with a full stop.
    """

    def __init__(self, reference: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.reference = reference
        self.message = message
        self.hint = hint

    @property
    def exit_code(self) -> int:
        """The process exit code that belongs to the reference."""
        return EXIT_CODES[self.reference]

    def __str__(self) -> str:
        """The text that a person reads: `gpuhook: message [reference]` and the hint below it."""
        text = f"gpuhook: {self.message} [{self.reference}]"
        if self.hint:
            text += "\n  fix: " + self.hint.replace("\n", "\n       ")
        return text


def shown(text: object, limit: int = 80) -> str:
    """Foreign text for a message: in quotes, no character that could steer a terminal or start a line, and no end."""
    if not isinstance(text, str):
        text = str(text).lower() if isinstance(text, bool) else str(text)
    return repr(text if len(text) <= limit else text[:limit] + "...")


def bare(text: object, limit: int = 80) -> str:
    """As `shown`, without the quotes."""
    return shown(text, limit)[1:-1]
