"""The same prompts from Spark, from the usual pandas UDF with openai or litellm, and from Daft, on one service."""

import asyncio
import contextlib
import functools
import importlib
import itertools
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.model_server import model_server
from benchmarks.results import Results
from benchmarks.spark import TASKS, run_query
from benchmarks.timing import alternating
from spark_client import connect

__all__ = ["measure_model_peers"]

ENVIRONMENT = Path("build/bench/model-peers")
VERSIONS = ["daft[openai]==0.7.26", "litellm==1.110.2", "openai==2.38.0"]
IN_FLIGHT = 1_000
"""Over all tasks. Daft has no such setting for prompts: it decides itself."""
DAFT_SHARE = 10
"""Of 5,000 prompts Daft has 500: with 1,000 Daft 0.7.26 sometimes hangs here, and with 2,000 always."""
LITELLM_SHARE = 5
DAFT_SECONDS = 60
DAFT_ATTEMPTS = 5


def measure_model_peers(results: Results, quick: bool, spark: SparkSession, url: str) -> None:
    """Rows per second, new prompts in each run."""
    rows, repetitions = (200, 1) if quick else (5_000, 3)
    packages = _packages()
    new = itertools.count()
    with model_server(url) as server:
        complete = connect(spark, server.target).function("complete_small", buffer_capacity=IN_FLIGHT // TASKS)
        gathered = {name: _gathering(name, url, packages, IN_FLIGHT // TASKS) for name in ("openai", "litellm")}
        counts = {
            "ours": rows,
            "openai_gather": rows,
            "litellm_gather": rows // LITELLM_SHARE,
            "daft": rows // DAFT_SHARE,
        }

        def asked(side: str, ask: Callable[..., Column]) -> float:
            return run_query(_prompts(spark, next(new), counts[side]).select(ask("prompt")))

        sides = {
            "ours": lambda: asked("ours", complete),
            "openai_gather": lambda: asked("openai_gather", gathered["openai"]),
            "litellm_gather": lambda: asked("litellm_gather", gathered["litellm"]),
            "daft": lambda: _daft(url, f"run {next(new)}", counts["daft"]),
        }
        times = results.medians("model_peers", alternating(sides, repetitions))
    rates = {name: counts[name] / times[name] for name in sides}
    note = f"rows/s, {rows:,} new prompts ({counts['litellm_gather']:,} for litellm, {counts['daft']:,} for Daft), "
    note += f"at most {IN_FLIGHT:,} in flight, {TASKS} tasks"
    results.add_all({f"prompts_{name}": rate for name, rate in rates.items()}, note)
    results.add("vs_openai_gather_in_pandas_udf", rates["ours"] / rates["openai_gather"], "rows/s of ours over its")
    results.add("vs_litellm_gather_in_pandas_udf", rates["ours"] / rates["litellm_gather"], "the same with litellm")
    results.add("vs_ray_data_llm_or_daft", rates["ours"] / rates["daft"], "rows/s of ours over those of Daft")


def _prompts(spark: SparkSession, run: int, rows: int) -> DataFrame:
    text = F.concat(F.lit(f"run {run}: summarize ticket "), "id")
    return spark.range(0, rows, 1, TASKS).select(text.alias("prompt"))


def _gathering(library: str, url: str, packages: str, at_once: int) -> Callable[..., Column]:
    """A pandas UDF that gathers the answers of each batch, with one client and a bound on what is in flight."""

    async def every(prompts: list[str]) -> list[str]:
        peer = importlib.import_module(library)  # of the peers' environment
        room = asyncio.Semaphore(at_once)
        async with contextlib.AsyncExitStack() as held:
            if library == "openai":
                client = await held.enter_async_context(peer.AsyncOpenAI(api_key="none", base_url=url))
                create = functools.partial(client.chat.completions.create, model="scripted")
            else:
                create = functools.partial(peer.acompletion, model="openai/scripted", api_base=url, api_key="none")

            async def one(prompt: str) -> str:
                async with room:
                    answer = await create(messages=[{"role": "user", "content": prompt}])
                    return answer.choices[0].message.content

            return await asyncio.gather(*map(one, prompts))

    def gathering(prompt: pd.Series) -> pd.Series:
        if packages not in sys.path:
            sys.path.append(packages)
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it fetches prices when it is imported
        return pd.Series(asyncio.run(every(prompt.tolist())))

    return F.pandas_udf(gathering, "string")  # type: ignore[call-overload]


def _daft(url: str, what: str, rows: int) -> float:
    script = Path(__file__).parent / "peers" / "daft_prompts.py"
    command = [str(ENVIRONMENT / "bin/python"), str(script), url, what, str(rows)]
    for _ in range(DAFT_ATTEMPTS):
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DAFT_SECONDS)
            return float(done.stdout.split()[-1])
    raise TimeoutError(f"Daft hangs in {DAFT_ATTEMPTS} of {DAFT_ATTEMPTS} runs")


def _packages() -> str:
    """The folder of the peers' packages, which are installed if they are not there."""
    python = ENVIRONMENT / "bin/python"
    if not python.exists():
        venv.create(ENVIRONMENT, with_pip=False)
    # Python compiles the few modules that it imports, pip would compile all.
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, *VERSIONS], check=True)
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
