"""The base of all commands: --quiet, --verbose and Ctrl-C."""

import shlex
import time
from typing import Any

from typer.core import TyperCommand, TyperOption

from uce_edge._util.heap import keep_freed_memory
from uce_edge.cli import messages
from uce_edge.cli.messages import Talk
from uce_edge.errors import UceEdgeError
from uce_edge.runtime import device_choice

_PANEL = "Messages"
_GOES_ON = {
    "build": "To continue where it stopped: {line}",
    "train": "To continue from the last epoch: {line} --resume",
    "reproduce": "The same command continues where it stopped.",
    "score": "The same command continues where it stopped.",
}
"""How to continue after Ctrl-C, for commands that can."""
_COMPUTES = {"calibrate", "compare", "evaluate", "export", "predict", "rank", "reproduce", "score", "train"}
"""Commands that run networks over many images. A server shares its machine, and `bench` measures what others get."""
_TRAINS = {"train", "reproduce"}
"""Commands whose device is one of torch."""
_OPTIONS, _TYPED = "uce_edge.provider_options", "uce_edge.typed"


class Stopped(UceEdgeError):
    """Ctrl-C ended a command; the exit code is 128 plus the number of the signal."""

    exit_code = 130
    default_code = "command.stopped"


def forget(ctx: Any, word: str) -> None:
    """Leave a word out of the command that continues after Ctrl-C."""
    ctx.meta[_TYPED] = [other for other in ctx.meta[_TYPED] if other != word]


class Command(TyperCommand):
    """A command with --quiet and --verbose; Ctrl-C ends it with one line."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.name not in _TRAINS and any(param.name == "device" for param in self.params):
            self.params.append(_provider_options())
        self.params += [
            _switch(
                "--quiet", Talk.QUIET, "Print only errors and alarms on stderr. Results are still printed on stdout."
            ),
            _switch("--verbose", Talk.VERBOSE, "Also print what is loaded, where it runs and how long it takes."),
        ]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Store the typed words, for the command that continues after Ctrl-C."""
        ctx.meta[_TYPED] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        started = time.monotonic()
        if self.name not in _TRAINS and "device" in ctx.params:  # a wrong one is refused before anything is loaded
            ctx.params["device"] = device_choice.with_options(ctx.params["device"], ctx.meta.get(_OPTIONS) or ())
        if self.name in _COMPUTES:
            keep_freed_memory()
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, Stopped):  # of this command, or of a stage that it runs as a command
            typed = [word for word in ctx.meta[_TYPED] if word != "--resume"]
            line = shlex.join(["uce-edge", str(self.name), *typed])
            raise Stopped(f"Stopped. {_GOES_ON.get(str(self.name), '').format(line=line)}".strip()) from None
        finally:
            messages.detail(f"{self.name} took {time.monotonic() - started:.2f} s.")


def _provider_options() -> TyperOption:
    def chosen(ctx: Any, _: Any, given: tuple[str, ...]) -> None:
        ctx.meta[_OPTIONS] = given

    return TyperOption(
        param_decls=["--provider-option"], multiple=True, type=str, metavar="KEY=VALUE", expose_value=False,
        callback=chosen, help="An option of the execution provider of --device. Can be repeated.",
    )  # fmt: skip


def _switch(name: str, talk: Talk, text: str) -> TyperOption:
    def chosen(_: Any, __: Any, given: bool) -> None:
        if given:
            messages.set_talk(talk)

    return TyperOption(
        param_decls=[name], is_flag=True, default=False, expose_value=False, callback=chosen, help=text, is_eager=True,
        rich_help_panel=_PANEL,
    )  # fmt: skip
