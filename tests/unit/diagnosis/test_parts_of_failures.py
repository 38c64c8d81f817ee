"""The part of a failure that no rule knows: by module, program, words, frames of a crash."""

from __future__ import annotations

import pytest

from clusterctl.diagnosis.verdict import Cause, cause_of_failure, diagnose
from clusterctl.reporting.diagnosis_view import cause_lines


def error(text: str) -> str:
    return f"(EngineCore pid=7) ERROR 10-01 08:01:00 [core.py:1099] {text}"


def first(*lines: str) -> Cause:
    return diagnose(lines)[0]


def test_an_unknown_failure_of_another_package_is_one_of_that_package() -> None:
    frame = error(
        '  File "/usr/lib/python3/dist-packages/oddkernels/moe/tiles.py", line 9, in pick'
    )
    cause = first(frame, error("    raise ValueError("), error("ValueError: block_size of 3"))

    assert cause.cause.startswith("the package oddkernels failed: ValueError: block_size of 3")
    assert "--block-size" not in cause.fix


@pytest.mark.parametrize(
    ("raised", "part"),
    [
        ("RuntimeError: HIP error: invalid image", "ROCm, below vLLM on AMD GPUs,"),
        ("RuntimeError: NPU function error: aclrtSync, code is 7", "CANN, below vLLM on Ascend"),
        ("RuntimeError: ACL stream lane is lost", "CANN, below vLLM on Ascend"),
        ("RuntimeError: _C_ascend::npu_lane() takes no odd lane", "vLLM for Ascend's NPUs"),
        ("RuntimeError: MUSA error: invalid image", "MUSA, below vLLM on GPUs of Moore Threads,"),
        ("ValueError: Mismatched x on argument #2 when calling: `f(", "vLLM's call of a compiled"),
        ("NotImplementedError: _C_cache_ops::copy: no kernel", "one of vLLM's own operators"),
    ],
)
def test_what_lies_below_vllm_is_told_by_its_own_name(raised: str, part: str) -> None:
    assert part in first(error(raised)).cause


def test_an_error_of_rocm_that_says_cuda_is_told_as_one_of_rocm() -> None:
    cause = first(
        error("torch.AcceleratorError: CUDA error: odd"), error("Search for `hipErrorOdd'")
    )

    assert cause.cause.startswith("ROCm, below vLLM on AMD GPUs, failed")


def test_the_innermost_frame_after_a_crash_tells_its_part() -> None:
    cause = first(
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f8840 (most recent call first):",
        '  File "/usr/lib/python3/dist-packages/flashinfer/decode.py", line 7 in run',
        '  File "/usr/lib/python3/dist-packages/vllm/v1/worker/gpu_worker.py", line 9 in step',
    )

    assert cause.cause.startswith("FlashInfer failed")
    assert "(flashinfer/decode.py:7)" in cause.cause
    assert cause.evidence[0].line == 1


def test_a_log_that_ends_inside_of_a_traceback_shows_what_was_raised() -> None:
    frame = (
        '  File "/usr/lib/python3/dist-packages/vllm/v1/core/sched/scheduler.py", line 9, in run'
    )
    lines = [error("Traceback (most recent call last):"), error(frame)]
    cause = first(*lines, error("    assert tokens >= 0"))

    assert "in vLLM's scheduler: AssertionError: assert tokens >= 0" in cause.cause
    assert cause.evidence[0].text.endswith("assert tokens >= 0")
    assert not diagnose([*lines, error("    tokens = count()")])


def test_a_warning_of_pytorchs_logger_is_no_failure_beside_one() -> None:
    warned = (
        "7:2026-10-01T08:00:00+0200 gpu1 vllm[7]: [rank3]:[W1001 08:00:00.7 NCCL.cpp:9] "
        "Failed to check the flag, with error: Failed to recv"
    )

    assert not diagnose([warned])
    cause = first("3:2026-10-01T08:00:00+0200 gpu1 vllm[7]: OddError: 7", warned)
    assert "OddError: 7" in cause.cause


def test_a_frontend_that_answers_requests_serves() -> None:
    lines = [
        "2026-10-01T08:00:00Z  INFO dynamo_llm::http: request completed status=success",
        "2026-10-01T08:00:01Z ERROR dynamo_llm::watcher: error removing model error=Missing card",
    ]

    assert not diagnose(lines)
    assert diagnose(lines[1:])


def test_what_only_a_client_did_wrong_is_no_failure_of_the_service() -> None:
    refused = '(APIServer pid=1) INFO:     10.0.0.9:5 - "POST /v1/models HTTP/1.1" 401 Unauthorized'
    lines = ["(APIServer pid=1) INFO:     Application startup complete.", refused]
    cause = first(*lines)

    assert (cause.id, cause.by_clients) == ("api-401", True)
    assert next(cause_lines([cause])) == "no failure of the service; clients' mistakes:"
    assert cause_of_failure(lines) is None
    assert not first(*lines, error("OddError: 7")).by_clients


def test_the_kernels_line_about_a_process_of_vllm_stands_before_others() -> None:
    killed = "Out of memory: Killed process {} ({}) total-vm:7kB, anon-rss:7kB"
    host = first(*(killed.format(*one) for one in ((7, "dbus-daemon"), (8, "VLLM::Worker_TP"))))
    pod = first("Reason: OOMKilled", f"Memory cgroup {killed.format(8, 'VLLM::Worker').lower()}")

    assert host.evidence[0].line == pod.evidence[0].line == 2
    assert host.cause.startswith("the host ran out of memory")
    assert pod.cause.startswith("a container, pod or job reached its own limit of memory")


def test_a_start_that_is_silent_for_long_before_its_log_ends_is_told() -> None:
    line = "2026-10-01T{}Z (EngineCore pid=7) INFO [backends.py:7] {}"
    lines = [line.format("08:00:00", "Dynamo bytecode transform time: 3.1 s"), "a note"]
    cause = first(*lines, line.format("08:41:00", "stopping"))

    assert "nothing was written for 41 minutes after this line" in cause.cause
    assert cause.evidence[0].line == 1
    assert not diagnose([*lines, line.format("08:19:00", "stopping")])


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'odd-compiler'",
            "program-missing",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/odd/lane'", "file-missing"),
        ("TypeError: make_graph() got an unexpected keyword argument 'odd'", "releases-mixed"),
        ("OddError: the pool of lanes is out of memory", "oom-gpu"),
        ("OddError: odd::thread: Resource temporarily unavailable", "threads-limit"),
        ("OddError: Permission denied: '/odd'", "permission"),
        ("OddError: lanes need compute capability 7.7", "kernel-missing"),
        ("OddError: odd lanes are not supported with even ones", "unsupported"),
        ("OddError: 'odd' is not one of 'even', 'round'", "name-unknown"),
        ("OddError: 7 lanes are not a multiple of 2", "sizes-differ"),
        ("OddError: lane 7 exceeds what was reserved", "beyond-limit"),
        ("KeyError: 'lanes.7.odd_proj.weight'", "weights-mismatch"),
        ("OddError: no route to host 10.0.0.7", "not-reached"),
        ("OddError: no lane within 30 seconds", "waited-in-vain"),
        ("OddError: odd lanes require even ones", "requirement"),
        ("OddError: CUDA error: operation not permitted", "call-not-permitted"),
        ("OddError: Cannot set up ODD in a forked subprocess", "forked"),
        ("OddError: ODD error in odd.cpp:7, invalid usage (version 7)", "nccl-usage"),
        ("AttributeError: '_OpNamespace' 'odd' object has no attribute 'lane'", "operator-missing"),
        ("OddError: 'make_lane' must be implemented for odd ones", "unsupported"),
        ("OddError: lanes % (8 / lane_size) == 0 is not so for 7", "sizes-differ"),
        ("OddError: odd lane: Device or resource busy", "no-device"),
        ("OddError: Failed to compile /tmp/odd.cxx", "cannot-compile"),
        ("OddError: the odd lane is not available", "requirement"),
        ("IndexError: lane 7 of 2", "index-out-of-range"),
    ],
)
def test_what_an_exception_says_tells_its_kind_and_is_never_certain(raised: str, kind: str) -> None:
    cause = first(error(raised))

    assert (cause.id, cause.certainty) == (kind, "likely")
    assert raised.rpartition(": ")[2] in cause.cause


def test_what_only_follows_from_another_process_does_not_say_why() -> None:
    cause = first(error("OddError: the lane of another process died"))
    assert (cause.id, cause.certainty) == ("rank-died", "unknown")


def test_a_setting_is_named_whose_value_is_refused() -> None:
    settings = "{'model': 'odd', 'lane_format': 'rounded', 'max_num_seqs': 8}"
    start = f"(APIServer pid=1) INFO 10-01 08:00:00 [utils.py:233] non-default args: {settings}"
    cause = first(start, error("OddError: lanes 'rounded' are not supported"))

    assert cause.fix.startswith("change --lane-format, which the line names, or leave it out; ")
    assert "--max-num-seqs" not in cause.fix


def test_a_known_line_long_after_another_failure_is_only_likely() -> None:
    known, other = error("RuntimeError: Engine ran on. No space left on device"), "an odd line"
    failed = error("OddError: 7")

    assert first(known).certainty == "certain"
    assert first(failed, *[other] * 9, known).certainty == "certain"
    assert first(failed, *[other] * 50, known).certainty == "likely"


def test_a_code_for_what_was_said_above_does_not_hide_it() -> None:
    warning = "gpu1:1:2 [0] odd.cc:7 NCCL WARN no lane to 10.0.0.7: No route to host"
    cause = first(warning, error("RuntimeError: NCCL error: unhandled odd error"))

    assert cause.evidence[0].line == 1


def test_a_code_is_told_with_what_stands_above_it() -> None:
    lines = ["makeLane: lane is out of range at 7", "lanes._bindings.laneError: LANE_ERR_PARAM"]

    assert not diagnose(lines[:1])
    cause = first(*lines)
    assert cause.cause.endswith("laneError: makeLane: lane is out of range at 7: LANE_ERR_PARAM")


def test_an_error_of_cuda_without_an_exception_counts_more_than_what_waits_for_it() -> None:
    waits = (
        "INFO 10-01 08:02:28 [shm_broadcast.py:698] No available shared memory broadcast block "
        "found in 60 seconds."
    )
    cause = first("[rank0]: CUDA error: an odd access was encountered", waits)

    assert cause.evidence[0].line == 1


@pytest.mark.parametrize("said", [error("preparing failed"), "x.exceptions.OddValidationError:"])
def test_what_leads_to_a_known_line_is_not_told_before_it(said: str) -> None:
    known = error(
        "ValueError: As of transformers v4.44, default chat template is no longer allowed"
    )
    assert [one.id for one in diagnose([said, known])] == ["chat-template-missing"]


def test_a_directory_named_after_an_architecture_is_none_that_the_gpu_lacks() -> None:
    path = "/build/csrc/sm_77/lane/../phase.cuh:7"

    assert first(error(f"OddError: ({path}): lane failed")).id == "cuda-kernel-fault"
    assert first(error("OddError: no lane for sm_77/sm_78")).id == "kernel-missing"


def test_the_end_of_a_process_has_no_frame_of_another_one() -> None:
    frame = '(APIServer pid=1) ERROR 10-01 08:01:00 [a.py:7]   File "/vllm/lane.py", line 7, in odd'
    cause = first(error("OddError: Assertion `lane == 7` failed."), frame)

    assert "lane.py" not in cause.cause


def test_an_assertion_about_what_something_is_tells_that_it_is_not() -> None:
    frame = error('  File "/usr/lib/python3/dist-packages/vllm/lane.py", line 9, in run')
    cause = first(frame, error("    assert is_odd_lane(lane)"), error("AssertionError"))

    assert cause.id == "requirement"
    assert "assert is_odd_lane(lane)" in cause.cause


def test_a_message_that_is_a_record_of_several_lines_is_read_to_its_end() -> None:
    record = ["{", '  "Lane": "/dev/odd/7",', '  "errno": "Permission denied",', '  "code": 7', "}"]
    cause = first(f"OddError: {record[0]}", *record[1:], "an odd line")

    assert cause.id == "permission"
    assert '"code": 7' in cause.cause
    assert "an odd line" not in cause.cause


def test_a_line_whose_time_somebody_left_out_is_read_like_others() -> None:
    of = "(EngineCore pid=7) ERROR ... [core.py:1099]"
    cause = first(f"{of}     raise OddError(", f"{of} OddError: lanes are not supported")

    assert (cause.id, cause.evidence[0].line) == ("unsupported", 2)


def test_what_makes_a_library_tell_more_is_no_setting_to_leave_out() -> None:
    cause = first(error("OddError: no lane (run with NCCL_DEBUG=WARN, or set NCCL_ODD_LANES)"))

    assert "NCCL_ODD_LANES in `env`, which the line names" in cause.fix
    assert "NCCL_DEBUG" not in cause.fix


def test_a_mistake_that_vllm_tells_clients_of_is_not_told_before_a_failure() -> None:
    mistake = "(APIServer pid=1) vllm.exceptions.VLLMValidationError: odd_lanes=7 is too large"
    causes = diagnose([mistake, error("IndexError: lane 7 of 2")])

    assert [one.id for one in causes] == ["index-out-of-range", "request-failed"]
    assert first(error("vllm.exceptions.VLLMValidationError: 7 is too large")).id == "beyond-limit"


def test_a_name_of_the_hub_that_nobody_knows_is_no_missing_directory() -> None:
    refused = "OSError: {} is not a local folder and is not a valid model identifier listed on 'h'"

    assert first(refused.format("odd-owner/Odd-7B")).cause.startswith(
        "the Hub has no model odd-owner/Odd-7B, or not for this account"
    )
    assert first(refused.format("/models/odd")).id == "weights-missing-on-node"


def test_what_a_rank_raised_is_read_where_its_line_breaks_off() -> None:
    cause = first(error("RuntimeError: Worker failed with error 'lane 7 exceeds 2'"))

    assert (cause.id, cause.cause) == (
        "beyond-limit",
        "a value is beyond its limit, in vLLM: lane 7 exceeds 2",
    )


def test_a_time_with_its_zone_before_a_line_is_no_part_of_it() -> None:
    assert (
        first(f"2026-10-01 08:01:00 UTC {error('IndexError: lane 7')}").id == "index-out-of-range"
    )


def test_what_python_ignores_at_its_start_is_no_failure() -> None:
    odd = "Error in sitecustomize; set PYTHONVERBOSE for traceback:"
    missing = "ModuleNotFoundError: No module named 'odd_lanes'"
    hook = [
        "Error processing line 1 of /usr/lib/odd.pth:",
        "",
        "  Traceback (most recent call last):",
        '    File "<string>", line 1, in <module>',
        f"  {missing}",
    ]

    assert diagnose([odd, missing]) == []
    assert diagnose(hook) == []
    assert first(missing).id == "module-missing"


def test_a_request_is_told_by_code_that_runs_for_one_if_the_log_lacks_the_start() -> None:
    of = "(APIServer pid=1)"
    cause = first(
        f"{of} Traceback (most recent call last):",
        f'{of}   File "/usr/lib/python3/dist-packages/vllm/renderers/odd.py", line 12, in render',
        f"{of} ValueError: odd lanes",
        f"{of} INFO 10-01 08:02:00 [loggers.py:1] Avg prompt throughput: 7.0 tokens/s",
    )

    assert (cause.id, cause.cause) == (
        "request-failed",
        "a request failed, in vLLM's rendering of requests: ValueError: odd lanes "
        "(vllm/renderers/odd.py:12)",
    )


def test_a_frame_of_the_next_traceback_is_no_part_of_an_exceptions_message() -> None:
    raised = error("RuntimeError: Check failed: odd lane")
    cause = first(raised, error('  File "/usr/lib/vllm/odd.py", line 7, in run'))

    assert cause.cause.endswith("RuntimeError: Check failed: odd lane")


def test_a_number_left_out_of_a_processes_name_hides_nothing() -> None:
    cause = first("(Worker_TP0 pid=...) ERROR [multiproc_executor.py:7] AssertionError")

    assert (cause.id, cause.cause) == ("unknown-cause", "vLLM failed: AssertionError")


def test_an_exception_below_what_a_logger_wrote_is_of_its_module() -> None:
    logged = "ERROR odd_tool_parser.py:7 - Lanes of the answer are odd."

    assert first(logged, "json.decoder.JSONDecodeError: Expecting value").cause.startswith(
        "the tool parser failed: JSONDecodeError"
    )


def test_compiled_code_of_vllm_that_is_missing_is_not_another_packages_wish() -> None:
    assert "compiled code (_C_odd) is missing" in (
        first("ModuleNotFoundError: No module named 'vllm._C_odd'").cause
    )
    assert "wants vllm.odd" in first("ModuleNotFoundError: No module named 'vllm.odd'").cause


def test_an_engine_that_died_without_a_word_is_told_before_who_reports_it() -> None:
    died = "Engine core proc EngineCore_DP7 died unexpectedly, shutting down client."
    dead = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
    cause = first("INFO:     Application startup complete.", error(died), error(dead))

    assert (cause.id, cause.certainty) == ("rank-died", "unknown")
    assert cause.evidence[0].line == 2
    assert first(error("IndexError: lane 7 of 2"), error(died)).id == "index-out-of-range"


@pytest.mark.parametrize(
    "raised",
    [
        "TypeError: unsupported operand type(s) for +: 'NoneType' and 'int'",
        "TypeError: 'NoneType' object is not iterable",
        "TypeError: must be real number, not str",
        "ValueError: the shape of object type 'odd.Lane' is unknown",
    ],
)
def test_a_value_of_another_type_is_no_lack_of_support(raised: str) -> None:
    assert first(error(raised)).id == "type-differs"


def test_weights_that_are_not_quantized_as_the_command_says_are_told() -> None:
    other = (
        "ValueError: Quantization method specified in the model config (odd) does not match the "
        "quantization method specified in the `quantization` argument (awq)."
    )

    assert "have no configuration of awq" in first("Cannot find the config file for awq").cause
    assert "another method than --quantization awq" in first(error(other)).cause
    assert first(error("TypeError: fp7 is not supported")).id == "unsupported"
