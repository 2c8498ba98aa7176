"""`gpuhook check` as a person runs it."""

import json
import sys

import click
import pytest
from click.testing import CliRunner, Result

from gpuhook import cli


def run(*arguments: str) -> Result:
    @click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def program(words: tuple[str, ...]) -> None:
        sys.exit(cli.main(["gpuhook", "check", *words]))

    return CliRunner().invoke(program, arguments)


CUDA = "cuda>=12.6 brand=tesla,driver>=470,driver<471"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["cuda>=12.2", "--driver", "535.1"], 0, "verdict: met\n"),
        (["cuda>=12.6", "--driver", "535.1"], 41, "verdict: not met\n"),
        (["cuda>=12.6", "--driver", "535.1", "--cuda", "12.6"], 0, "found:   driver 535.1, CUDA up to 12.6\n"),
        (["cuda>=12.6", "--driver", "535.1", "--policy", "minor-compat"], 0, "warning: "),
        (["cuda>=12.6", "--driver", "535.1", "--policy", "warn"], 0, "started all the same"),
        (["cuda>=12.6", "--driver", "535.1", "--policy", "off"], 0, "needed:  nothing: the policy is off"),
        ([" ", "--driver", "535.1"], 0, "needed:  nothing: EXPR is blank"),
        ([CUDA, "--driver", "470.1", "--brand", "tesla"], 0, "presumes that the image brings"),
        ([CUDA, "--driver", "470.1", "--brand", "Tesla", "--compat-libs", "yes"], 0, "forward-compatibility libraries"),
        (
            [CUDA, "--driver", "470.1", "--brand", "tesla", "--compat-libs", "560.35.05"],
            0,
            "verdict: met by the image's forward",
        ),
        ([CUDA, "--driver", "470.1", "--brand", "tesla", "--compat-libs", "no"], 41, "verdict: not met"),
        ([CUDA, "--driver", "470.1", "--brand", "geforce"], 41, "needed:  cuda>=12.6 (of 2 alternatives the closest)"),
        (["arch>=8.0", "--driver", "580.1", "--arch", "7.5"], 41, "compute capability 7.5"),
        (["cuda>=12", "--driver", "551.78"], 0, "CUDA up to 12.4 (assumed from the branch)"),
        (["cuda=>12", "--driver", "535.1"], 40, "EXPR: can't parse 'cuda=>12'"),
        (["cuda>=12", "--driver", "1"], 2, "nothing is known of drivers before 340"),
        (["cuda>=12", "--driver", "x"], 2, "a driver version is expected"),
        (["cuda>=12", "--driver", "535", "--cuda", "12.x"], 2, "digits and dots are expected"),
        (["cuda>=12", "--driver", "535", "--compat-libs", "maybe"], 2, "yes, no or a driver version"),
    ],
)
def test_exit_status_and_what_is_said(arguments: list[str], code: int, said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == code
    assert said in result.output


def test_needed_and_found_are_two_lines() -> None:
    result = run("cuda>=12.6", "--driver", "535.161.08", "--brand", "geforcertx", "--arch", "8.9")
    assert result.stdout.split("\n")[:2] == [
        "needed:  cuda>=12.6",
        "found:   driver 535.161.08, CUDA up to 12.2; brand geforcertx, compute capability 8.9",
    ]
    assert result.stderr.startswith("gpuhook: this container needs CUDA 12.6 or newer; a geforcertx GPU, driver 535")


@pytest.mark.parametrize(("text", "code"), [("cuda>=12.2", 0), ("cuda>=13", 41), ("cuda>", 40)])
def test_json_is_one_document(text: str, code: int) -> None:
    result = run(text, "--driver", "535.1", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == code
    assert document["met"] is (code == 0)
    assert (document["error"] or {}).get("reference") == {0: None, 41: "requirement-not-met", 40: "requirement-syntax"}[
        code
    ]


@pytest.mark.parametrize(
    "words",
    [["cuda>=99", "--driver", "535.1"], [CUDA, "--driver", "470.1", "--brand", "geforce"]],
    ids=["one alternative", "several"],
)
def test_a_refusal_names_no_variable(words: list[str]) -> None:
    """There is no image whose variable EXPR would be."""
    result = run(*words)
    assert result.exit_code == 41
    assert "EXPR" not in result.stderr


def test_help_has_examples() -> None:
    assert "gpuhook check 'cuda>=12.6'" in run("--help").stdout
