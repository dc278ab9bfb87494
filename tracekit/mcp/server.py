"""Declare the tools and resources of the server, and serve them over standard input and output, or over HTTP."""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BaseModel, Field

from mcp.server import MCPServer
from tracekit.errors import TracekitError
from tracekit.mcp import resources
from tracekit.mcp.paging import MIN_TOKENS, PageStore
from tracekit.mcp.process import WorkerProcess, WorkerSettings
from tracekit.mcp.roots import AllowedFolders
from tracekit.text import to_printable

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping

    from mcp.server.mcpserver import Context
    from starlette.types import ASGIApp, Receive, Scope, Send

DEFAULT_TOKENS, DEFAULT_SECONDS, DEFAULT_MEMORY = 8000, 120.0, 4 << 30
MAX_ARGUMENTS = 200_000
"""Maximum number of characters of the arguments of a call."""
_INT64 = 2**63 - 1
_MAX_ERROR = 2000

CapturePath = Annotated[
    str,
    Field(
        description="Path of a capture as list_captures returns it, or of a folder with the captures of a job.",
        min_length=1,
        max_length=4096,
    ),
]
RowLimit = Annotated[int, Field(description="Maximum number of rows of each table.", ge=1, le=10_000)]
StepTime = Annotated[
    int | None,
    Field(description="Duration of a step without the profiler in ns. It narrows predictions.", ge=1, le=_INT64),
]
Table = Annotated[str, Field(description="Name of a table, such as kernels.", min_length=1, max_length=200)]
Time = Annotated[int, Field(description="Time in ns since the origin of the capture.", ge=-_INT64, le=_INT64)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class OmittedItems(BaseModel):
    """Items of a list or an object that a page omits."""

    path: str = Field(description="JSON pointer of the list or object in the answer.")
    from_: int = Field(alias="from", description="Index of the first item that is omitted.")
    count: int = Field(description="Number of items that are omitted.")


class AnswerPage(BaseModel):
    """A page of an answer."""

    answer: dict[str, Any] = Field(
        description="The answer: the envelope that tracekit://schema/answer describes. In a later page: path, from and "
        "items, which are the next items of the list or object at path."
    )
    omitted: list[OmittedItems] = Field(description="What no page has contained yet.")
    next_page: str | None = Field(description="Handle for the tool next_page, or null if nothing is omitted.")


Reply = Annotated[CallToolResult, AnswerPage]
READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)


class CaptureServer(MCPServer[Any]):
    """A server whose tools reject arguments that they do not have."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None) -> Any:
        """Call a tool, after a check of the names and the size of its arguments.

        Raises:
            ToolError: The tool or an argument does not exist, or the arguments are too large.
        """
        tools = {tool.name: tool.input_schema for tool in await self.list_tools()}
        if name not in tools:
            raise ToolError(f"there is no tool {_quote(name)}. The tools are {', '.join(tools)}.")
        known = list(tools[name].get("properties", {}))
        for each in arguments:
            if each not in known:
                raise ToolError(f"{name} has no argument {_quote(each)}. Its arguments are {', '.join(known)}.")
        if len(json.dumps(arguments, default=str)) > MAX_ARGUMENTS:
            raise ToolError(f"the arguments have more than {MAX_ARGUMENTS:,} characters")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if len(str(error)) <= _MAX_ERROR:
                raise
            raise ToolError(f"{str(error)[:_MAX_ERROR]}…") from error


class CaptureTools:
    """The tools of the server. Each method with a public name is a tool, which its docstring describes."""

    def __init__(self, folders: AllowedFolders, worker: WorkerProcess, pages: PageStore) -> None:
        self._folders = folders
        self._worker = worker
        self._pages = pages

    async def list_captures(
        self,
        name_contains: Annotated[
            str | None, Field(description="List only files whose name contains this text.", max_length=200)
        ] = None,
    ) -> Reply:
        """List the captures in the allowed folders, with their formats and sizes. Start here."""
        return await self._ask("list_captures", name_contains=name_contains)

    async def open_capture(self, capture: CapturePath) -> Reply:
        """Describe what a capture contains: profiler, GPUs, steps, rows of each table, and what is not decoded."""
        return await self._ask("open_capture", capture=capture)

    async def explain_slow_step(self, capture: CapturePath, step_time_ns: StepTime = None) -> Reply:
        """Explain why the steps of a run take as long as they do.

        The answer has a ledger in which each nanosecond of a step is counted once, the causes of lost time with
        evidence and a cure, and what each cure would save, with an interval.
        """
        return await self._ask("explain_slow_step", capture=capture, step_time_ns=step_time_ns)

    async def predict(
        self,
        capture: CapturePath,
        edits: Annotated[
            list[Annotated[str, Field(min_length=1, max_length=1000)]],
            Field(
                description="Edits, such as 'kernel *gemm* x0.5', 'range data removed', 'copy Host-to-Device pageable "
                "=20us' or 'cause:data_loading'.",
                min_length=1,
                max_length=50,
            ),
        ],
        step_time_ns: StepTime = None,
    ) -> Reply:
        """Predict how long a step would take after edits, by replaying the events of the steps with other times."""
        return await self._ask("predict", capture=capture, edits=edits, step_time_ns=step_time_ns)

    async def compare(
        self,
        a: CapturePath,
        b: CapturePath,
        by: Annotated[
            list[Name] | None,
            Field(description="Kinds of rows to compare, such as kernels or iterations.", max_length=20),
        ] = None,
        limit: RowLimit = 20,
    ) -> Reply:
        """Compare two captures or folders of captures: what is new, gone, faster or slower in b than in a."""
        return await self._ask("compare", a=a, b=b, by=by, limit=limit)

    async def explain_step(
        self,
        capture: CapturePath,
        step: Annotated[
            int | None,
            Field(
                description="Number of the step. Without it, all steps are listed with their parts.",
                ge=-_INT64,
                le=_INT64,
            ),
        ] = None,
    ) -> Reply:
        """List the steps with the parts of their time, or show the whole ledger of one step by range."""
        return await self._ask("explain_step", capture=capture, step=step)

    async def top_work(
        self,
        capture: CapturePath,
        by: Annotated[
            Literal["kernel", "op", "range", "category", "api", "memory", "layer"],
            Field(description="What to sum the time by."),
        ] = "kernel",
        limit: RowLimit = 20,
    ) -> Reply:
        """Sum the time by kernel, op, NVTX range, category of kernels, API function, memory operation or layer."""
        return await self._ask("top_work", capture=capture, by=by, limit=limit)

    async def timeline_slice(
        self,
        *,
        capture: CapturePath,
        start_ns: Time,
        end_ns: Time,
        tables: Annotated[
            list[Name], Field(description="Tables with a start and an end.", min_length=1, max_length=20)
        ] = ["kernels", "memcpys", "api_calls", "nvtx_ranges"],  # noqa: B006 - pydantic copies it
        min_duration_ns: Annotated[
            int | None, Field(description="List only rows of at least this duration.", ge=0, le=_INT64)
        ] = None,
        limit: RowLimit = 100,
    ) -> Reply:
        """List what ran between two times, the longest first, and how many rows there are."""
        return await self._ask(
            "timeline_slice",
            capture=capture,
            start_ns=start_ns,
            end_ns=end_ns,
            tables=tables,
            min_duration_ns=min_duration_ns,
            limit=limit,
        )

    async def look_up_rows(
        self,
        *,
        capture: CapturePath,
        table: Table,
        ids: Annotated[
            list[Annotated[int, Field(ge=-_INT64, le=_INT64)]],
            Field(description="Ids of the rows, such as those of evidence.", min_length=1, max_length=1000),
        ],
        column: Annotated[
            str | None, Field(description="Column with the ids. By default, the key of the table.", max_length=200)
        ] = None,
        columns: Annotated[
            list[Name] | None, Field(description="Columns to return. By default, all columns.", max_length=100)
        ] = None,
        rank: Annotated[int | None, Field(description="Rank of the capture with the rows.", ge=0, le=_INT64)] = None,
        limit: RowLimit = 1000,
    ) -> Reply:
        """Return the recorded rows of a table with the given ids: the evidence of an answer."""
        return await self._ask(
            "look_up_rows",
            capture=capture,
            table=table,
            ids=ids,
            column=column,
            columns=columns,
            rank=rank,
            limit=limit,
        )

    async def query(
        self,
        capture: CapturePath,
        sql: Annotated[
            str,
            Field(
                description="One SELECT statement of DuckDB over the tables of the capture, such as SELECT name, "
                "sum(end_ns - start_ns) AS ns FROM kernels GROUP BY name ORDER BY ns DESC LIMIT 10.",
                min_length=1,
                max_length=20_000,
            ),
        ],
    ) -> Reply:
        """Run one SELECT statement over the tables of a capture. tracekit://tables lists the tables and columns."""
        return await self._ask("query", capture=capture, sql=sql)

    async def run_analysis(
        self,
        capture: CapturePath,
        name: Annotated[
            str, Field(description="Name of a report, rule or recipe; tracekit://analyses lists them.", max_length=200)
        ],
        kind: Annotated[Literal["report", "rule", "recipe"], Field(description="Kind of the analysis.")] = "report",
        options: Annotated[
            dict[Name, bool | int | str] | None, Field(description="Values of options, by name.", max_length=20)
        ] = None,
        limit: RowLimit = 50,
    ) -> Reply:
        """Run a named report, a rule that finds problems, or a recipe that compares ranks."""
        return await self._ask("run_analysis", capture=capture, name=name, kind=kind, options=options, limit=limit)

    async def how_to_record(
        self,
        capture: CapturePath,
        tables: Annotated[
            list[Name] | None, Field(description="Names of tables. By default, those of most use.", max_length=100)
        ] = None,
    ) -> Reply:
        """Tell what a capture lacks, why, and which option of its profiler records it."""
        return await self._ask("how_to_record", capture=capture, tables=tables)

    async def next_page(
        self, handle: Annotated[str, Field(description="next_page of an answer.", min_length=1, max_length=100)]
    ) -> Reply:
        """Return the next items that an answer omitted."""
        try:
            return _create_result(self._pages.create_next_page(handle))
        except TracekitError as error:
            raise ToolError(str(error)) from error

    async def _ask(self, question: str, **arguments: Any) -> CallToolResult:
        """Return the first page of the answer of the worker.

        Raises:
            ToolError: The question cannot be answered.
        """
        try:
            for name in ("capture", "a", "b"):
                if name in arguments:
                    arguments[name] = str(self._folders.resolve(arguments[name]))
            answer = await self._worker.ask(question, arguments)
            return _create_result(self._pages.create_first_page(answer))
        except TracekitError as error:
            raise ToolError(str(error)) from error


TOOLS = (
    *("list_captures", "open_capture", "explain_slow_step", "explain_step", "top_work", "timeline_slice"),
    *("look_up_rows", "query", "run_analysis", "predict", "compare", "how_to_record", "next_page"),
)
"""Names of the tools, in the order in which they are listed."""


def _create_result(page: Mapping[str, Any]) -> CallToolResult:
    text = json.dumps(page, ensure_ascii=False, separators=(",", ":"))
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=dict(page))


def _quote(text: str) -> str:
    return repr(to_printable(text[:100].encode("utf-8", "replace").decode("utf-8")))


def create_server(settings: WorkerSettings, max_tokens: int = DEFAULT_TOKENS) -> tuple[CaptureServer, WorkerProcess]:
    """Return a server with all tools and resources, and the worker that computes its answers.

    Args:
        settings: What the worker may do.
        max_tokens: Maximum number of tokens of a page of an answer.

    Raises:
        TracekitError: A root is not a folder.
    """
    folders = AllowedFolders(settings.roots)
    worker = WorkerProcess(settings)

    @contextlib.asynccontextmanager
    async def end_worker(_: MCPServer[Any]) -> Any:
        try:
            yield {}
        finally:
            await worker.close()

    server = CaptureServer(
        "tracekit",
        title="tracekit",
        description="Answers questions about captures of GPU profilers.",
        instructions=resources.INSTRUCTIONS,
        version=version("tracekit"),
        log_level="ERROR",
        lifespan=end_worker,
    )
    tools = CaptureTools(folders, worker, PageStore(max(max_tokens, MIN_TOKENS)))
    for name in TOOLS:
        server.add_tool(getattr(tools, name), annotations=READ_ONLY)
    _add_resources(server)
    return server, worker


def _add_resources(server: MCPServer[Any]) -> None:
    texts: Mapping[str, tuple[str, Callable[[], str]]] = {
        "tables": ("Tables of captures with their columns.", resources.describe_tables),
        "analyses": ("Reports, rules and recipes with their options.", resources.describe_analyses),
        "causes": ("Causes that explain_slow_step may state.", resources.describe_causes),
        "statuses": ("Statuses of answers.", resources.describe_statuses),
        "guide": ("How to find out why a run is slow.", lambda: resources.INSTRUCTIONS),
    }
    for name, (doc, function) in texts.items():
        server.resource(f"tracekit://{name}", name=name, description=doc, mime_type="text/plain")(function)
    doc = "JSON Schema of the envelope (answer), of a row of a table, or of a row of a result (its schema)."

    def read_schema(name: str) -> str:
        try:
            return resources.build_schema(name)
        except TracekitError as error:
            raise ResourceError(str(error)) from error

    uri = "tracekit://schema/{name}"
    server.resource(uri, name="schema", description=doc, mime_type="application/schema+json")(read_schema)
    for name in resources.OBJECTS:
        uri = f"tracekit://schema/{name}"
        server.resource(uri, name=f"schema of {name}", description=doc, mime_type="application/schema+json")(
            functools.partial(resources.build_schema, name)
        )


def serve_stdio(server: CaptureServer) -> None:
    """Serve over standard input and output until the input ends."""
    anyio.run(server.run_stdio_async)


class TokenCheck:
    """An application that passes on only requests with a token in the header ``Authorization``."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or reject it with status 401."""
        headers = dict(scope.get("headers", ()))
        is_lifespan = scope["type"] == "lifespan"
        if not is_lifespan and not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            from starlette.responses import Response

            response = Response(
                "The token is missing or wrong.", status_code=401, headers={"WWW-Authenticate": "Bearer"}
            )
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)


def serve_http(server: CaptureServer, listener: socket.socket, token: str | None) -> None:
    """Serve over HTTP until a signal ends the process.

    Args:
        server: The server.
        listener: Socket that listens on a loopback address.
        token: Token that requests must contain, or None.
    """
    import uvicorn

    host, port = listener.getsockname()[:2]
    names = [f"{host}:{port}", f"localhost:{port}"]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=names,
        allowed_origins=[f"http://{name}" for name in names],
    )
    app: ASGIApp = server.streamable_http_app(host=host, json_response=True, transport_security=security)
    config = uvicorn.Config(
        app if token is None else TokenCheck(app, token), log_level="error", access_log=False, server_header=False
    )

    class LocalServer(uvicorn.Server):
        """A server that leaves the handlers of signals to the command line."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    anyio.run(LocalServer(config).serve, [listener])
