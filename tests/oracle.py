"""A second evaluator of the requirement language: what the tests expect, from the grammar and not from gpuhook's code.

It imports nothing of gpuhook, reads by regular expression, compares versions as padded lists, and knows no messages.
`None` stands for unknown device data and, as `compat`, for an image that is not at hand.
"""

import re
from functools import cache

# Branch and CUDA level as nvidia-smi and the toolkit's runfile names pair them.
LEVELS = """
340:6.5 346:7.0 352:7.5 361:8.0 367:8.0 375:8.0 384:9.0 387:9.1 390:9.1 396:9.2 410:10.0 418:10.1 430:10.1 435:10.1
440:10.2 450:11.0 455:11.1 460:11.2 465:11.3 470:11.4 495:11.5 510:11.6 515:11.7 520:11.8 525:12.0 530:12.1 535:12.2
545:12.3 550:12.4 555:12.5 560:12.6 565:12.7 570:12.8 575:12.9 580:13.0 590:13.1 595:13.2 610:13.3 615:13.4
"""
BRANCH_LEVEL = dict(pair.split(":") for pair in LEVELS.split())
FLOOR = {"11": "450.80.02", "12": "525.60.13", "13": "580.65.06"}
NO_FORWARD_COMPATIBILITY = {"geforce", "geforcertx", "titan", "titanrtx", "nvs"}

_CONDITION = re.compile(r"([A-Za-z0-9_.-]+)(!=|<=|>=|[!=<>])([^<>=!].*)?", re.ASCII | re.DOTALL)
_VERSION = re.compile(r"(?=[0-9.]{1,128}\Z)[0-9.]*[0-9][0-9.]*\Z", re.ASCII)


@cache
def parse(text: str) -> list[list[tuple[str, str, str]]] | None:
    """Alternatives of conditions, or None where the text is not in the language."""
    if len(text) > 65536:
        return None
    alternatives = []
    for word in re.split(r"[ \t\n\r\v\f]+", text):
        conditions = []
        for item in word.split(","):
            if item:
                found = _CONDITION.fullmatch(item)
                if not found or not found[3]:
                    return None
                name, operator, wanted = found[1].lower(), found[2], found[3]
                if name in ("cuda", "driver", "arch") and not _VERSION.match(wanted):
                    return None
                if name == "brand" and operator not in ("=", "!=", "!"):
                    return None
                conditions.append((name, operator, wanted))
        if conditions:
            alternatives.append(conditions)
    return None if not alternatives and "," in text else alternatives


@cache
def number(text: str) -> list[int]:
    """A version as 130 numbers, so that lists compare as versions do."""
    parts = [int(part or "0") for part in text.split(".")]
    return parts + [0] * (130 - len(parts))


def holds(found: str | None, operator: str, wanted: str) -> bool:
    """One version condition."""
    if not found:
        return True
    a, b = number(found), number(wanted)
    return {"=": a == b, "!": a != b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[operator]


@cache
def level(driver: str) -> str:
    """The CUDA level of a driver by its branch; an unknown branch has that of the branch before it."""
    branch = int(driver.split(".")[0])
    return BRANCH_LEVEL[str(max(int(known) for known in BRANCH_LEVEL if int(known) <= branch))]


def minor(needed: str, driver: str) -> bool:
    """Minor-version compatibility: the same CUDA major version, and a driver from its floor on."""
    major = needed.split(".")[0]
    floor = "450.36.06" if number(needed)[:2] == [11, 0] else FLOOR.get(major)
    return floor is not None and number(driver) >= number(floor) and level(driver).split(".")[0] == major


def met(
    text: str,
    driver: str,
    *,
    brand: str | None = None,
    arch: str | None = None,
    policy: str = "strict",
    compat: str | None = "",
    cuda: str | None = None,
) -> bool | None:
    """Whether one GPU (or none: no brand, no arch) meets one requirement; None where the text is none."""
    alternatives = parse(text)
    if alternatives is None:
        return None
    if not alternatives or policy in ("warn", "off"):
        return True
    cuda = cuda or level(driver)
    values = {"cuda": cuda, "driver": driver, "arch": arch}

    def holding(name: str, operator: str, wanted: str) -> bool:
        if name == "brand":
            return not brand or (brand.lower() == wanted.lower()) == (operator == "=")
        return name in values and holds(values[name], operator, wanted)

    asked = [item[2] for alternative in alternatives for item in alternative if item[0] == "cuda" and item[1] in "=>="]
    image = max(asked, key=number, default=None)
    bridged = (
        image is None
        or number(cuda) >= number(image)
        or minor(image, driver)
        or compat is None
        or ((brand or "") not in NO_FORWARD_COMPATIBILITY and number(compat)[0] > number(driver)[0])
    )
    for alternative in alternatives:
        states_level = any(item[0] == "cuda" for item in alternative)
        broken = [item for item in alternative if not holding(*item)]
        if not broken and (states_level or bridged):
            return True
        relaxed = all(
            item[0] == "cuda" and item[1] in "=>=" and number(cuda) <= number(item[2]) and minor(item[2], driver)
            for item in broken
        )
        if policy == "minor-compat" and states_level and relaxed:
            return True
    return False
