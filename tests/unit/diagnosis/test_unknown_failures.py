"""What failed is named for logs that no rule knows, and nothing is accused in healthy ones."""

from __future__ import annotations

import pytest

from clusterctl.diagnosis.verdict import Cause, diagnose
from clusterctl.reporting.diagnosis_view import cause_lines

START = "(APIServer pid=1) INFO 10-01 08:00:00 [utils.py:233] non-default args: {settings}"
ENGINE = (
    "(EngineCore pid=7) INFO 10-01 08:00:05 [core.py:105] Initializing a V1 LLM engine (v{}) with"
)
READY = "(APIServer pid=1) INFO:     Application startup complete."
ENDED = "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above."


def error(text: str, of: str = "(EngineCore pid=7)") -> str:
    return f"{of} ERROR 10-01 08:01:00 [core.py:1099] {text}"


def traceback(*frames: tuple[str, str], raised: str, of: str = "(EngineCore pid=7)") -> list[str]:
    """Return the lines of a traceback; `frames`: paths in vLLM's directory, and functions."""
    lines = [error("Traceback (most recent call last):", of)]
    for path, function in frames:
        lines.append(
            error(f'  File "/usr/lib/python3/dist-packages/{path}", line 12, in {function}', of)
        )
        lines.append(error(f"    {function}()", of))
    return [*lines, error(raised, of)]


def first(*lines: str) -> Cause:
    return diagnose(lines)[0]


def test_an_exception_is_named_with_its_part_and_what_was_running() -> None:
    settings = "{'model': 'm', 'kv_transfer_config': {'kv_role': 'kv_both'}, 'max_num_seqs': 8}"
    cause = first(
        START.format(settings=settings),
        ENGINE.format("0.41.0"),
        *traceback(
            ("vllm/v1/worker/gpu_worker.py", "initialize_from_config"),
            ("vllm/distributed/kv_transfer/kv_connector/v1/newlink.py", "register_kv_caches"),
            raised="newlink.LinkError: no route for block 7",
        ),
        ENDED,
    )

    assert cause.id == "unknown-cause"
    assert cause.certainty == "unknown"
    assert cause.cause == (
        "the KV connector failed while handing the KV cache to the connector: "
        "LinkError: no route for block 7 (vllm/distributed/kv_transfer/"
        "kv_connector/v1/newlink.py:12)"
    )
    assert "--kv-transfer-config" in cause.fix
    assert "--max-num-seqs" not in cause.fix
    assert cause.evidence[0].text.endswith("newlink.LinkError: no route for block 7")


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("vllm/v1/spec_decode/tree.py", "speculative decoding"),
        ("vllm/model_executor/models/newmodel.py", "the model's code in vLLM"),
        ("vllm/v1/attention/backends/mla/new.py", "the attention backend"),
        ("flashinfer/jit/core.py", "FlashInfer"),
        ("lmcache/v1/cache_engine.py", "the KV connector (LMCache)"),
        ("deep_ep/buffer.py", "the DeepEP kernels of experts"),
        ("ray/_private/worker.py", "Ray"),
        ("torch/distributed/c10d_logger.py", "torch.distributed"),
        ("transformers/models/auto/configuration_auto.py", "transformers"),
    ],
)
def test_the_innermost_file_shows_the_part(path: str, part: str) -> None:
    cause = first(*traceback(("vllm/v1/engine/core.py", "run"), (path, "do"), raised="OddError: 1"))
    assert cause.cause.startswith(f"{part} failed: OddError: 1")


def test_the_message_shows_nccl_and_cuda_wherever_they_are_called() -> None:
    frames = ("vllm/v1/worker/gpu_worker.py", "execute_model")
    cause = first(*traceback(frames, raised="RuntimeError: CUDA error: an odd one"))
    assert cause.cause.startswith("CUDA failed while computing a step: RuntimeError: CUDA error")


def test_what_wraps_the_first_exception_is_taken_off() -> None:
    rank = "(EngineCore pid=7) (RayWorkerWrapper pid=9, ip=10.0.0.2)"
    cause = first(
        *traceback(("vllm/v1/worker/gpu_worker.py", "load_model"), raised="OddError: a", of=rank),
        error("The above exception was the direct cause of the following exception:", rank),
        *traceback(("vllm/v1/worker/gpu_worker.py", "load_model"), raised="RunError: b", of=rank),
        error("ray.exceptions.RayTaskError(OddError): ray::RayWorkerWrapper.execute_method()"),
        error("OddError: a"),
        ENDED,
    )

    assert (
        cause.cause
        == "vLLM failed while loading the model: OddError: a (vllm/v1/worker/gpu_worker.py:12)"
    )
    assert cause.evidence[0].host == "10.0.0.2"
    assert all("RunError" not in one.text for one in cause.evidence)


def test_what_failed_after_something_was_tried_counts() -> None:
    cause = first(
        *traceback(("vllm/a.py", "get"), raised="KeyError: 'x'"),
        error("During handling of the above exception, another exception occurred:"),
        *traceback(("vllm/a.py", "make"), raised="OddError: cannot make x"),
    )
    assert cause.cause == "vLLM failed: OddError: cannot make x (vllm/a.py:12)"


def test_the_first_by_time_counts_over_all_ranks() -> None:
    early = "(Worker pid=3, ip=10.0.0.3) ERROR 10-01 08:00:30 [w.py:1] EarlyError: first"
    late = "(Worker pid=4, ip=10.0.0.4) ERROR 10-01 08:00:31 [w.py:1] LateError: then"
    assert "EarlyError" in first(late, early).cause


def test_ranks_that_write_at_once_keep_their_tracebacks() -> None:
    one, other = "(Worker_TP0 pid=1)", "(Worker_TP1 pid=2)"
    mine = traceback(("flashinfer/jit/core.py", "build"), raised="OddError: x", of=one)
    theirs = traceback(("vllm/lora/worker.py", "add"), raised="OddError: y", of=other)
    mixed = [line for pair in zip(mine, theirs, strict=True) for line in pair]

    cause = first(*mixed)

    assert cause.cause == "FlashInfer failed: OddError: x (flashinfer/jit/core.py:12)"


def test_a_compilers_line_counts_and_not_the_headline_above_it() -> None:
    cause = first(
        error("RuntimeError: Ninja build failed. Ninja output:"),
        error("FAILED: sampling.cuda.o"),
        error("/usr/include/new.cuh(41): error: identifier odd is undefined"),
        ENDED,
    )
    assert cause.cause.endswith("failed: identifier odd is undefined")


@pytest.mark.parametrize(
    ("line", "certainty", "flags"),
    [
        ("  Value error, --new-size 7 must be even [type=value_error, input_value=7]", "certain",
         "--new-size"),
        ("vllm serve: error: argument --new-mode: invalid choice: 'x'", "certain", "--new-mode"),
    ],
)  # fmt: skip
def test_a_setting_that_vllm_refuses_is_named(line: str, certainty: str, flags: str) -> None:
    cause = first(line)
    assert (cause.id, cause.certainty) == ("setting-refused", certainty)
    assert cause.cause.startswith(f"vLLM refuses {flags}: ")


@pytest.mark.parametrize(
    "line",
    [
        "Segmentation fault (core dumped)",
        "thread 'main' panicked at src/lib.rs:7: odd",
        "gpu1:41:52 [0] new.cc:7 NCCL WARN something odd",
        error("the new part gave up"),
        "torch._dynamo.exc.Unsupported: call of odd",
    ],
)
def test_no_log_that_ends_badly_is_passed_over(line: str) -> None:
    assert first(ENGINE.format("0.41.0"), line).certainty != "certain"


def test_a_line_that_speaks_of_an_error_gives_way_to_the_exception() -> None:
    (cause,) = diagnose([error("worker failed"), error("OddError: 1"), error("it is over")])
    assert [one.text for one in cause.evidence] == [error("OddError: 1")]


HEALTHY = [
    START.format(settings="{'model': 'm'}"),
    "(EngineCore pid=7) INFO 10-01 08:03:00 [shm_broadcast.py:698] No available shared memory "
    "broadcast block found in 60 seconds. This typically happens when some processes are hanging",
    "(EngineCore pid=7) INFO 10-01 08:03:10 [network_utils.py:248] Port 100 is already in use, "
    "trying port 101",
    "(EngineCore pid=7) WARNING 10-01 08:03:11 [autotune.py:9] tactic 3 failed: RuntimeError: odd",
    *traceback(("vllm/utils/hub.py", "get"), raised="OddError: the first try failed"),
    READY,
]


def test_a_start_that_went_on_to_serve_has_no_cause() -> None:
    assert diagnose(HEALTHY) == []
    assert diagnose([*HEALTHY, HEALTHY[1]]) == [], "long work after the start"


def test_the_same_lines_count_in_a_start_that_did_not_end() -> None:
    assert [one.id for one in diagnose(HEALTHY[:2])] == ["engine-dead-stall"]
    assert first(*HEALTHY[:-1]).id == "unknown-cause"


def test_what_a_request_met_is_not_the_services_failure() -> None:
    frames = ("vllm/entrypoints/openai/serving_chat.py", "create")
    cause = first(*HEALTHY, *traceback(frames, raised="OddError: no such tool"))
    assert (cause.id, cause.follows_from) == ("request-failed", None)


RAY_RANK = "(EngineCore pid=7) (RayWorkerWrapper pid=9, ip=10.0.0.2)"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            [
                ENGINE.format("0.18.1"),
                *traceback(
                    ("vllm/v1/worker/gpu_model_runner.py", "initialize_attn_backend"),
                    raised="KeyError: 'model.layers.7.self_attn.attn' [repeated 3x across cluster]",
                    of=RAY_RANK,
                ),
            ],
            "pipeline-kv-groups",
        ),
        (
            [
                ENGINE.format("0.33.0"),
                *traceback(
                    ("vllm/v1/worker/gpu_model_runner.py", "initialize_attn_backend"),
                    raised="KeyError: 'model.layers.7.self_attn.attn'",
                ),
            ],
            "unknown-cause",
        ),
        (
            [READY, error("RuntimeError: Remote NIXL agent engine ID mismatch. Expected a, got b")],
            "nixl-other-engine",
        ),
        (
            [error("ValueError: group 1: MambaSpec with mamba_cache_mode='none' cannot be kept")],
            "connector-needs-align",
        ),
        (
            [
                "a:1:2 [0] ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed with 110 "
                "Connection timed out, on dev r0:1, local GID index 3, local GID ::ffff:10.9.1.1, "
                "remote GID ::ffff:10.9.2.1"
            ],
            "nccl-port-pairing",
        ),
        (
            [
                "a:1:2 [0] ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed with 110 "
                "Connection timed out, on dev r0:1, local GID index 3, local GID ::ffff:10.9.1.1, "
                "remote GID ::ffff:10.9.1.2"
            ],
            "nccl-remote-error-ib",
        ),
        (
            [
                error("RuntimeError: Ninja build failed. Ninja output:"),
                error('/c/cuda_toolkit.h:41:6: error: #error "CUDA compiler and CUDA toolkit '
                      'headers are incompatible"'),
            ],
            "cuda-headers-differ",
        ),
        (
            [error("ValueError: Free memory on device cuda:0 (99.8/119.64 GiB) on startup is less "
                   "than desired GPU memory utilization (0.9, 107.6 GiB).")],
            "gpu-memory-shared",
        ),
        (
            [error("ValueError: Free memory on device cuda:0 (59.8/139.81 GiB) on startup is less "
                   "than desired GPU memory utilization (0.9, 125.8 GiB).")],
            "gpu-already-used",
        ),
        (
            [READY, error("AttributeError: 'NewForCausalLM' object has no attribute 'pooler'")],
            "pooler-missing",
        ),
    ],
)  # fmt: skip
def test_what_came_with_the_releases_of_2026_is_told_apart(lines: list[str], expected: str) -> None:
    assert first(*lines).id == expected


@pytest.mark.parametrize(
    ("frames", "raised", "part"),
    [
        # The innermost file is one that all parts call, so one further outwards counts.
        (["vllm/v1/spec_decode/tree.py", "vllm/forward_context.py"], "OddError: 1",
         "speculative decoding"),
        (["nixl_connector.py", "vllm/v1/worker/utils.py"], "OddError: 1",
         "the KV connector (NIXL)"),
        # vLLM's compilation calls all that a model does.
        (["vllm/compilation/wrapper.py", "vllm/utils/math.py"], "OddError: 1", "vLLM"),
        # No file tells, and the message does.
        (["vllm/v1/worker/gpu_model_runner.py"], "AttributeError: no attribute 'drafter'",
         "speculative decoding"),
        (["vllm/v1/worker/gpu_model_runner.py"], "nixl_cu13._bindings.nixlNotFoundError: X",
         "the KV connector (NIXL)"),
    ],
)  # fmt: skip
def test_a_part_that_all_others_run_in_is_no_answer(
    frames: list[str], raised: str, part: str
) -> None:
    cause = first(*traceback(*((path, "do") for path in frames), raised=raised))
    assert cause.cause.startswith(f"{part} failed: ")


def test_an_exception_without_words_is_told_with_its_line_of_code() -> None:
    cause = first(
        error("Traceback (most recent call last):"),
        error('  File "/usr/lib/python3/dist-packages/vllm/a.py", line 88, in make'),
        error("    assert sizes[rank] == batch"),
        error("           ^^^^^^^^^^^^^^^^^^^^"),
        error("AssertionError"),
    )
    assert cause.cause.endswith(
        ", in vLLM: AssertionError: assert sizes[rank] == batch (vllm/a.py:88)"
    )


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (error("RuntimeError: Worker failed with error 'OddError: no lane', please check the stack "
               "trace above for the root cause"), "vLLM failed: OddError: no lane"),
        ("/src/nvshmem/ibrc.cpp:418: non-zero status: 110 lane failed",
         "NVSHMEM failed: /src/nvshmem/ibrc.cpp:418: non-zero status: 110 lane failed"),
        ("[1749.5] [gpu1:7053 :0]   tcp_ep.c:1260 UCX  ERROR send(110) failed: Input/output error",
         "UCX failed: tcp_ep.c:1260 UCX  ERROR send(110) failed: Input/output error"),
        (error("nvcc fatal   : No input for lane 7"),
         "a kernel that is compiled at the start failed: No input for lane 7"),
        ("Exception: no lane is left", "a program failed: Exception: no lane is left"),
        ("[rank1]: Error while joining lane 7 (size 0), no such lane",
         "a program failed: Error while joining lane 7 (size 0), no such lane"),
        ("(EngineCore) ERROR [core.py:1138] no lane", "vLLM failed: no lane"),
        ("[2] [FATAL ERROR]: HIP failure: 'odd'",
         "ROCm, below vLLM on AMD GPUs, failed: HIP failure: 'odd'"),
        ("OddPass.cpp:7: Assertion ... of lanes",
         "a program failed: OddPass.cpp:7: Assertion ... of lanes"),
        # NCCL before 2.4
        ("gpu1:93:131 [0] include/socket.h:344 WARN No lane", "a program failed: gpu1:93:131 [0] "
         "include/socket.h:344 WARN No lane"),
    ],
)  # fmt: skip
def test_other_programs_words_for_a_failure_are_read(line: str, cause: str) -> None:
    assert first(line).cause == cause


@pytest.mark.parametrize(
    "line",
    [
        "W0613 08:28:11.555796    7053 ucx_utils.cpp:43] Unexpected UCX error: Endpoint timeout",
        "gpu1:410:521 [0] NCCL INFO transport/net_ib.cc:1021 an error, and on with sockets",
    ],
)
def test_warnings_of_native_libraries_are_no_failures(line: str) -> None:
    assert diagnose([line]) == []


def test_what_changed_since_it_last_served_is_told() -> None:
    cause = first(
        START.format(settings="{'model': 'm', 'max_num_seqs': 8, 'block_size': 16}"),
        ENGINE.format("0.40.0"),
        READY,
        START.format(settings="{'model': 'm', 'max_num_seqs': 64, 'block_size': 16}"),
        ENGINE.format("0.41.0"),
        *traceback(("vllm/v1/worker/gpu_worker.py", "load_model"), raised="OddError: 1"),
        ENDED,
    )
    assert "undo what changed since it last served (vLLM 0.40.0 is now 0.41.0, --max-num-seqs)" in (
        cause.fix
    )


WAITS = (
    "INFO 10-01 08:02:28 [shm_broadcast.py:698] No available shared memory broadcast block found "
    "in 60 seconds."
)
GRAPHS = "(Worker_TP8 pid=71) INFO 10-01 08:05:05 [g.py:6100] Graph capturing finished in 22 secs"


def test_a_host_without_the_api_server_that_waited_and_went_on_is_healthy() -> None:
    """It never logs that the service is ready."""
    assert diagnose([GRAPHS, WAITS, WAITS.replace(":02:", ":03:"), GRAPHS]) == []
    assert diagnose([WAITS, "[AutoTuner]: Tuning new::op:  55%|███▎  | 12/22 [06:58<07:10]"]) == []
    assert first(GRAPHS, WAITS).id == "engine-dead-stall"


def test_an_exception_after_which_its_program_went_on_is_no_failure() -> None:
    raised = "ImportError: libcudart.so.13: cannot open shared object file: No such file"
    assert diagnose([f"WARNING 10-01 08:02:28 [import_utils.py:408] {raised}"]) == []
    assert first(error(raised)).id == "extension-mismatch"


@pytest.mark.parametrize(
    "line",
    [
        # What ranks and hosts meet until they have found each other, and what Ray goes on without
        "gpu1:93:131 [0] socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer g",
        "(RayWorkerProc pid=9, ip=10.0.0.2) [2026-10-01 08:01:30,1 E 9 40] core_worker.cc: "
        "Failed to establish connection to the metrics exporter agent. They will not be exported.",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 79.11 GiB of which 1.38 GiB is free.",
    ],
)
def test_what_a_start_that_serves_met_before_is_overcome(line: str) -> None:
    assert diagnose([ENGINE.format("0.33.0"), line, READY]) == []


def test_a_host_that_reached_the_heads_ray_in_the_end_is_healthy() -> None:
    tried = (
        "[2026-10-01 08:00:00,7 E 1 1] gcs_rpc_client.h:179: Failed to connect to GCS at address g"
    )
    runs = "2026-10-01 08:00:13,461 SUCC scripts.py:1064 -- Ray runtime started."
    assert diagnose([tried, runs]) == []
    assert first(tried).id == "gcs-unreachable"
    assert first(tried, runs, "vllm serve: error: argument --new: invalid choice: 'x'").id == (
        "setting-refused"
    )


STOPPED = "(EngineCore pid=7) KeyboardInterrupt"


def test_a_start_that_was_stopped_says_so_and_a_service_that_was_stopped_is_healthy() -> None:
    beginning = (START.format(settings="{}"), ENGINE.format("0.33.0"))
    assert first(*beginning, STOPPED, ENDED).id == "stopped-from-outside"
    assert first(*beginning, error("OddError: 1"), STOPPED).id == "unknown-cause"
    assert diagnose([*beginning, READY, STOPPED]) == []
    assert diagnose([*beginning, STOPPED, *beginning, READY]) == []


def test_a_log_that_lacks_its_first_lines_is_of_the_start_that_served() -> None:
    """Its lines before the engine's first one are of no start before."""
    assert diagnose(["OddError: 1", ENGINE.format("0.33.0"), READY]) == []
    assert diagnose(["/x/image.py:14: UserWarning: Failed to load x: 'no such file'"]) == []


def test_a_message_that_goes_on_below_its_colon_is_told_whole() -> None:
    cause = first(error("x.OddError: Check failed: (2 vs. 3) :"), error("sparse_mla_sm120 odd"))
    assert (
        cause.cause == "FlashInfer failed: OddError: Check failed: (2 vs. 3) : sparse_mla_sm120 odd"
    )
    assert cause.evidence[0].line == 1


def test_an_exception_in_c_without_its_message_is_named_by_its_place() -> None:
    place = "/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2125"
    cause = first(f"Exception raised from run at {place} (most recent call first):", ENDED)
    assert cause.cause == f"NCCL failed: an exception was raised from run at {place}"


def test_what_freed_memory_wrongly_is_named_before_the_abort() -> None:
    cause = first("double free or corruption (out)", "Fatal Python error: Aborted")
    assert cause.cause == "a program failed: double free or corruption (out)"


def test_what_processes_say_of_each_other_when_a_service_is_ended_is_no_failure() -> None:
    stop = "(APIServer pid=1) INFO [launcher.py:100] [shutdown] API server: shutdown triggered"
    engine = "(EngineCore pid=7) INFO [core.py:1] [shutdown] EngineCore: trigger received signal=9"
    beginning = (START.format(settings="{}"), ENGINE.format("0.33.0"), READY)
    dead = error("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.")
    assert diagnose([*beginning, engine, stop, dead]) == []
    assert first(*beginning, engine, dead).id == "engine-dead-stall"
    asked = "(EngineCore pid=7) INFO [core.py:1363] Shutdown initiated (timeout=0)"
    rank = error("Worker proc VllmWorker-0 died unexpectedly, shutting down executor.")
    assert diagnose([*beginning, asked, rank]) == []
    assert first(*beginning, rank).id == "rank-died"
    assert first(*beginning, error("OddError: 1"), stop, dead).id == "unknown-cause"
    assert first(*beginning, stop, dead, *beginning[:2], error("OddError: 1")).evidence[0].line == 8


WARNED = (
    "(Worker pid=9) WARNING 10-01 08:00:30 [decorators.py:321] Compiling model again due to a load "
    "failure from /x, reason: Source code has changed since the last compilation. Recompiling."
)
SERVER = (
    "(APIServer pid=1) INFO 10-01 08:02:00 [api_server.py:677] Starting vLLM server on http://x"
)
WORKS = (
    "(APIServer pid=1) INFO 10-01 08:03:00 [loggers.py:310] Engine 000: Avg prompt throughput: 9"
)


@pytest.mark.parametrize("mark", [SERVER, WORKS])
def test_a_log_without_the_http_servers_lines_shows_that_it_serves(mark: str) -> None:
    beginning = (START.format(settings="{}"), ENGINE.format("0.33.0"), error("OddError: 1"))
    assert diagnose([*beginning, mark]) == []
    assert first(*beginning[:2], mark, error("OddError: 1"), WORKS).id == "unknown-cause"


def test_a_cache_that_is_made_again_is_no_failure() -> None:
    assert diagnose([ENGINE.format("0.33.0"), WARNED]) == []


def test_a_process_that_dies_while_it_serves_is_named() -> None:
    died = "!!!!!!! Segfault encountered !!!!!!!"
    assert first(ENGINE.format("0.33.0"), READY, died).cause == f"a program failed: {died}"


def test_a_start_that_a_signal_ended_is_told_as_that() -> None:
    stop = "(APIServer pid=1) INFO [launcher.py:100] [shutdown] API server: shutdown triggered"
    after = error("AsyncLLM output_handler failed.", "(APIServer pid=1)")
    assert [one.id for one in diagnose([ENGINE.format("0.33.0"), stop, after])] == [
        "stopped-from-outside"
    ]


def test_what_a_library_refuses_while_settings_are_read_is_no_refusal_of_vllm() -> None:
    lines = traceback(
        ("vllm/engine/arg_utils.py", "create_engine_config"),
        ("sentencepiece/__init__.py", "LoadFromFile"),
        raised="TypeError: not a string",
    )
    assert first(*lines).cause.startswith("the tokenizer failed while reading the settings")


def test_what_cplusplus_says_below_its_end_is_told_with_it() -> None:
    cause = first("terminate called after throwing an instance of 'x'", "  what():  NCCL odd")
    assert cause.cause.endswith("what():  NCCL odd")
    assert cause.cause.startswith("NCCL failed")


def test_warnings_just_before_an_unknown_failure_are_shown_with_it() -> None:
    def warning(time: str, of: str) -> str:
        return f"(Worker pid={of}) WARNING 10-01 {time} [kv.py:9] no page of one size"

    cause = first(
        warning("07:30:00", "9"),
        warning("08:00:59", "8"),
        warning("08:00:58", "9"),
        *traceback(("vllm/v1/core/kv.py", "unify"), raised="OddError: 1", of="(Worker pid=9)"),
    )
    assert [one.line for one in cause.before] == [3]
    assert any("before it: log:3: " in line for line in cause_lines([cause]))


def test_a_clock_of_no_day_hides_no_warning_before_a_failure() -> None:
    cause = first("WARNING 02-31 08:00:00 [kv.py:9] no page", error("OddError: 1", of=""))
    assert [one.line for one in cause.before] == [1]


@pytest.mark.parametrize(
    "lines",
    [
        ("AssertionError: 16 is not divisib", "le by 3"),
        (error("AssertionError: 16 is not"), error("divisible by 3")),
    ],
)
def test_a_line_that_was_broken_is_read_as_a_whole(lines: tuple[str, ...]) -> None:
    cause = first(*lines)
    assert cause.cause == "--tp 3 does not divide the model's 16 attention heads"
    assert cause.evidence[0].line == 1


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.",
        "srun: error: gpu1: task 0: Out Of Memory",
        "Killed",
        "/usr/bin/bash: line 7: 4242 Killed                  vllm serve m",
        "container vllm exited with code 137",
    ],
)
def test_a_process_that_was_killed_is_told_whoever_says_so(line: str) -> None:
    assert first(line).id == "host-oom-ray"
    assert diagnose(["INFO the tasks were Killed or not", "exit code: 1370"]) == []


def test_what_other_programs_call_an_error_is_no_setting_that_vllm_refuses() -> None:
    assert first("/usr/bin/gcc: error: unrecognized option --odd").id == "name-unknown"
    assert first("vllm serve: error: argument --new: invalid choice").id == "setting-refused"


@pytest.mark.parametrize(
    "prefix",
    [
        "Oct  1 08:01:00 gpu1 vllm[7]: ",
        "Oct 11 08:01:00 gpu1 serve: ",
        "117:",
        "2026-10-01 10:01:00.016 | ",
    ],
)
def test_what_writers_and_readers_of_logs_put_before_lines_hides_nothing(prefix: str) -> None:
    lines = traceback(
        ("vllm/v1/attention/backends/newlane.py", "forward"),
        raised="RuntimeError: lane 7 is closed",
    )

    cause = first(*(prefix + line for line in lines))

    assert cause.cause.startswith("the attention backend failed: RuntimeError: lane 7 is closed")


def test_a_key_that_a_class_of_settings_lacks_is_named() -> None:
    lines = [
        "pydantic_core._pydantic_core.ValidationError: 2 validation errors for LaneConfig",
        "lane_width",
        "  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=4, input_type=int]",  # noqa: E501
        "lanes",
        "  Input should be a valid integer [type=int_type, input_value='x', input_type=str]",
    ]

    cause = first(*lines)

    assert cause.id == "setting-refused"
    assert "lane_width of LaneConfig: Unexpected keyword argument" in cause.cause
    assert not diagnose(lines[2:3])


def test_a_traceback_that_its_author_shortened_shows_the_part() -> None:
    cause = first(
        "vllm/v1/core/sched/scheduler.py:12  schedule",
        "  self.connector.close()",
        "vllm/distributed/kv_transfer/kv_connector/v1/newlink.py:34 in close",
        "  assert lanes == open_lanes",
        "AssertionError",
    )

    assert cause.cause.endswith(
        ", in the KV connector: AssertionError: assert lanes == open_lanes "
        "(vllm/distributed/kv_transfer/kv_connector/v1/newlink.py:34)"
    )


def test_what_a_library_says_counts_more_than_the_code_that_is_raised_for_it() -> None:
    cause = first(
        "E0101 07:00:00.000001 lane_rail.cpp:9] lane 7 failed: no such provider",
        "E0101 07:00:00.000002 lane_manager.cpp:9] no lanes: lane 7 failed",
        "lanes._bindings.laneError: LANE_ERR_BACKEND",
    )

    assert cause.evidence[0].line == 1
    assert "no such provider" in cause.cause


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("RuntimeError: fi_getinfo found no lane", "libfabric"),
        ("RuntimeError: NIXL has no lane", "the KV connector (NIXL)"),
        ("RuntimeError: RAY_LANES is not a number", "Ray"),
        ("ERROR 10-01 08:01:00 [lanes.py:12] no lane is left", "vLLM"),
    ],
)
def test_a_line_without_a_traceback_shows_the_part_by_its_words(line: str, part: str) -> None:
    assert first(line).cause.startswith(f"{part} failed: ")


def test_what_others_wait_for_in_vain_follows_from_a_failure_before_it() -> None:
    causes = diagnose(
        [
            "ValueError: lane 7 cannot be used with rail 8",
            "RuntimeError: Did not receive response from front-end process within 5 minutes",
        ]
    )

    assert [(one.id, one.follows_from) for one in causes] == [
        ("unsupported", None),
        ("engine-ready-timeout", "unsupported"),
    ]


def test_a_level_in_small_letters_between_bars_is_one() -> None:
    stamp = "2026-10-01 08:01:00.299"

    cause = first(f"{stamp} | critical | Always | lane 7 timed out. Try resetting the device.")

    assert cause.id == "gpu-lost"
    assert not diagnose([f"{stamp} | info | Always | lane 7 failed: it is tried again"])


def test_a_call_that_a_container_may_not_make_is_told_as_that() -> None:
    assert first("RuntimeError: lane_open: Operation not permitted").id == "permission"


def test_a_name_that_the_loader_of_weights_misses_is_one_of_weights() -> None:
    lines = traceback(
        ("vllm/model_executor/models/lane.py", "load_weights"), raised="KeyError: 'w'"
    )

    assert first(*lines).id == "weights-mismatch"


def test_a_headline_of_the_server_is_no_failure_of_its_own() -> None:
    assert not diagnose(["01:29:15 ERROR async_llm.py:704 AsyncLLM output_handler failed."])
