"""`uce-edge web`: a local web page that runs a model in the browser."""

from typing import Annotated

import typer

from uce_edge.cli.messages import say
from uce_edge.cli.shared_options import InferenceOption, ModelOption, choose_model
from uce_edge.errors import UsageError, expected


def web(
    model: ModelOption = None,
    inference: InferenceOption = None,
    port: Annotated[int, typer.Option(help="The port of the page. 0 chooses a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="The address to listen on. 0.0.0.0 admits other devices.")] = "127.0.0.1",
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Serve a web page that runs a model in the browser. Images never leave the device.

    Example: uce-edge web --open

    Example: uce-edge web --model digits.onnx --port 8080
    """
    if not 0 <= port <= 65535:
        raise UsageError(expected("`port`", "between 0 and 65535", port, "For example: --port 8000"))
    model = choose_model(model, inference)
    from uce_edge.serve.page_contents import assets, contents
    from uce_edge.serve.page_server import listen

    with listen(contents(assets(), model), host, port) as server:
        address = server.names.address
        say(f"{model} in the browser: {address}   (stop with Ctrl+C)")
        if not server.names.local:
            say("note: over plain http, browsers on other devices allow neither the camera nor threads.")
        try:
            if open_page:
                import webbrowser

                webbrowser.open(address)
            server.serve_forever()
        except KeyboardInterrupt:
            say("Stopped.")
