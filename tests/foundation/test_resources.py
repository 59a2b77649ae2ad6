"""How many workers a host has room for: the decision as a table, control groups and launchers as made-up trees."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lit_loader.foundation.host import (
    MAX_WORKERS,
    PROCESS_BYTES,
    Resources,
    count_cores,
    count_ranks,
    decide_num_workers,
    read_cgroup_limits,
    read_resources,
    read_throttled_s,
)

GIB = 1 << 30


@pytest.mark.parametrize(
    ("resources", "number", "reason"),
    [
        ({"num_cores": 8}, 7, "8 cores, of which the training step keeps one"),
        ({"num_cores": 8, "has_accelerator": True}, 8, "runs on an accelerator"),
        ({"num_cores": 1}, 0, "1 core, of which the training step keeps one"),
        ({"num_cores": 1, "has_accelerator": True}, 1, "1 core, the training step runs on an accelerator"),
        ({"num_cores": 8, "quota_cores": 2.5}, 1, "a quota of 2.5 of 8 cores"),
        ({"num_cores": 8, "quota_cores": 0.5, "has_accelerator": True}, 0, "a quota of 0.5 of 8 cores"),
        ({"num_cores": 2, "quota_cores": 4.0}, 1, "2 cores, "),
        ({"num_cores": 8, "ranks_on_host": 2}, 3, "8 cores shared by 2 ranks"),
        ({"num_cores": 8, "quota_cores": 4.0, "ranks_on_host": 2}, 1, "quota of 4 of 8 cores shared by 2 ranks"),
        ({"num_cores": 4, "ranks_on_host": 4}, 0, "4 cores shared by 4 ranks"),
        ({"num_cores": 6, "ranks_on_host": 4, "has_accelerator": True}, 1, "6 cores shared by 4 ranks"),
        ({"num_cores": 4, "cores_per_rank": 4, "ranks_on_host": 4}, 3, "4 cores for each rank"),
        ({"num_cores": 2, "cores_per_rank": 8}, 1, "2 cores, "),  # affinity is what counts
        ({"num_cores": 8, "cores_per_rank": 4, "ranks_on_host": 2, "quota_cores": 4.0}, 1, "a quota of 4"),
        ({"num_cores": 8, "available_bytes": 4 * GIB}, 4, "4.0 GiB of memory for 1 rank, half of it at 512 MiB"),
        ({"num_cores": 8, "available_bytes": GIB // 2}, 0, "0.5 GiB of memory"),
        ({"num_cores": 8, "available_bytes": 8 * GIB, "ranks_on_host": 2}, 3, "shared by 2 ranks"),
        ({"num_cores": 8, "available_bytes": 4 * GIB, "ranks_on_host": 2}, 2, "4.0 GiB of memory for 2 ranks"),
        ({"num_cores": 96}, MAX_WORKERS, f"at most {MAX_WORKERS} (lit-loader tune"),
    ],
    ids=str,
)
def test_the_decision_and_its_reason(resources, number, reason):
    decision, why = decide_num_workers(Resources(**resources))
    assert decision == number
    assert why.startswith(f"num_workers='auto' is {number}: ")
    assert reason in why
    assert "\n" not in why


def test_a_reason_names_only_what_decided():
    _, why = decide_num_workers(Resources(num_cores=4, quota_cores=8.0, available_bytes=64 * GIB))
    assert why == "num_workers='auto' is 3: 4 cores, of which the training step keeps one"


def test_workers_that_take_less_memory_fit_more_often():
    resources = Resources(num_cores=8, available_bytes=2 * GIB)
    assert decide_num_workers(resources, worker_bytes=PROCESS_BYTES)[0] == 2
    assert decide_num_workers(resources, worker_bytes=PROCESS_BYTES // 4)[0] == 7


# -- control groups -----------------------------------------------------------------------------------------


def tree(root, *, groups, mounts, **files):
    """Write the files of a made-up system; names of files have ``__`` for ``/``."""
    process_folder = root / "proc" / "self"
    process_folder.mkdir(parents=True)
    (process_folder / "cgroup").write_text(groups)
    (process_folder / "mountinfo").write_text(
        "".join(f"{number} 1 0:2{number} {m}\n" for number, m in enumerate(mounts))
    )
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


V2 = ["/ /sys/fs/cgroup rw - cgroup2 cgroup2 rw"]
V1 = [
    "/ /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct",
    "/ /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory",
]


def test_version_2_the_tightest_group_on_the_way_up_counts(tmp_path):
    root = tree(
        tmp_path,
        groups="0::/batch/job\n",
        mounts=V2,
        batch__job__cpu_dot_max="max 100000",
        batch__cpu_dot_max="150000 100000",
        batch__job__memory_dot_max="8589934592",
        batch__job__memory_dot_current="2147483648",
        batch__job__memory_dot_stat="anon 1\ninactive_file 1073741824",
        batch__memory_dot_max="max",
    )
    assert read_cgroup_limits(root) == (1.5, 7 * GIB)  # 8 - (2 used - 1 that can be reclaimed)


def test_version_2_a_high_mark_limits_too(tmp_path):
    files = {"job__memory_dot_max": "max", "job__memory_dot_high": GIB, "job__memory_dot_current": GIB // 4}
    root = tree(tmp_path, groups="0::/job\n", mounts=V2, **files)
    assert read_cgroup_limits(root) == (None, GIB - GIB // 4)


def test_version_1_with_controllers_in_places_of_their_own(tmp_path):
    root = tree(
        tmp_path,
        groups="4:memory:/box\n2:cpu,cpuacct:/box/inner\n0::/\n",
        mounts=V1,
        **{
            "cpu,cpuacct__box__inner__cpu_dot_cfs_quota_us": "-1",
            "cpu,cpuacct__box__inner__cpu_dot_cfs_period_us": "100000",
            "cpu,cpuacct__box__cpu_dot_cfs_quota_us": "300000",
            "cpu,cpuacct__box__cpu_dot_cfs_period_us": "100000",
            "cpu,cpuacct__box__inner__cpu_dot_stat": "nr_throttled 3\nthrottled_time 2500000000",
            "memory__box__memory_dot_limit_in_bytes": 4 * GIB,
            "memory__box__memory_dot_usage_in_bytes": GIB,
            "memory__box__memory_dot_stat": "total_inactive_file 0",
            "memory__memory_dot_limit_in_bytes": "9223372036854771712",
        },
    )
    assert read_cgroup_limits(root) == (3.0, 3 * GIB)
    assert read_throttled_s(root) == 2.5


def test_in_a_container_the_mount_shows_the_own_group_as_its_root(tmp_path):
    mounts = ["/docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu"]
    files = {"cpu__cpu_dot_cfs_quota_us": "50000", "cpu__cpu_dot_cfs_period_us": "100000"}
    root = tree(tmp_path / "a", groups="3:cpu:/docker/abc\n", mounts=mounts, **files)
    assert read_cgroup_limits(root)[0] == 0.5
    # another group of the host's, which is not to be seen from here
    root = tree(tmp_path / "b", groups="3:cpu:/../other\n", mounts=mounts, **files)
    assert read_cgroup_limits(root)[0] == 0.5
    deeper = tree(tmp_path / "c", groups="3:cpu:/docker/abc/x/y\n", mounts=mounts, **files)
    assert read_cgroup_limits(deeper)[0] == 0.5


def test_both_versions_at_once(tmp_path):
    mounts = [*V1[1:], "/ /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"]
    files = {"unified__a__cpu_dot_max": "200000 100000", "memory__memory_dot_limit_in_bytes": GIB}
    root = tree(tmp_path, groups="4:memory:/\n0::/a\n", mounts=mounts, **files)
    assert read_cgroup_limits(root) == (2.0, GIB)


@pytest.mark.parametrize("text", ["", "nonsense", "0 100000", "100000 0", "max"])
def test_unreadable_files_limit_nothing(tmp_path, text):
    root = tree(tmp_path, groups="0::/\nbad\n", mounts=[*V2, "short"], cpu_dot_max=text, memory_dot_max=text)
    assert read_cgroup_limits(root) == (None, None)
    assert read_throttled_s(root) is None
    assert read_cgroup_limits(tmp_path / "nowhere") == (None, None)


def test_throttling_of_version_2_is_in_microseconds(tmp_path):
    root = tree(tmp_path, groups="0::/a\n", mounts=V2, a__cpu_dot_stat="usage_usec 9\nthrottled_usec 1500000")
    assert read_throttled_s(root) == 1.5


# -- the host -----------------------------------------------------------------------------------------------

SLURM = {"SLURM_PROCID": "0", "SLURM_NTASKS_PER_NODE": "4"}


@pytest.mark.parametrize(
    ("environ", "ranks"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "8"}, 8),
        ({"LOCAL_WORLD_SIZE": "2", **SLURM}, 2),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 3),
        (SLURM, 4),
        ({"SLURM_NTASKS_PER_NODE": "4"}, 1),  # an allocation, not a task
        ({**SLURM, "SLURM_JOB_NAME": "interactive"}, 1),
        ({"LOCAL_WORLD_SIZE": "many"}, 1),
    ],
)
def test_launchers_say_how_many_ranks_there_are(environ, ranks):
    assert count_ranks(environ) == ranks


def test_the_host_is_read_in_one_go(tmp_path, monkeypatch):
    monkeypatch.setattr("lit_loader.foundation.host.count_cores", lambda: 16)
    root = tree(tmp_path, groups="0::/\n", mounts=V2, cpu_dot_max="800000 100000", memory_dot_max=2 * GIB)
    (root / "proc/meminfo").write_text("MemTotal: 99999999 kB\nMemAvailable: 4194304 kB\n")
    resources = read_resources(ranks_on_host=2, has_accelerator=True, environ={}, root=root)
    assert resources == Resources(
        num_cores=16, quota_cores=8.0, available_bytes=2 * GIB, ranks_on_host=2, has_accelerator=True
    )
    (root / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert read_resources(environ={}, root=root).available_bytes == 4 * GIB


def test_the_larger_of_a_trainers_and_a_launchers_ranks_counts(tmp_path):
    assert read_resources(ranks_on_host=2, environ={"LOCAL_WORLD_SIZE": "4"}, root=tmp_path).ranks_on_host == 4
    assert read_resources(ranks_on_host=4, environ={"LOCAL_WORLD_SIZE": "2"}, root=tmp_path).ranks_on_host == 4


def test_cores_that_slurm_gave_each_task_are_its_own(tmp_path):
    environ = {**SLURM, "SLURM_CPUS_PER_TASK": "6"}
    assert read_resources(environ=environ, root=tmp_path).cores_per_rank == 6
    # a trainer that starts eight ranks is not what Slurm counted on
    assert read_resources(environ=environ, ranks_on_host=8, root=tmp_path).cores_per_rank is None


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="affinity is Linux's")
def test_affinity_counts_and_not_the_machine():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert count_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert count_cores() == len(allowed)


def test_this_host_can_be_read():
    resources = read_resources()
    assert resources.num_cores >= 1
    assert resources.available_bytes > 0
    assert decide_num_workers(resources)[0] >= 0


def test_no_torch_is_needed():
    code = "import sys, lit_loader.foundation.host; assert not {'torch', 'lightning'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
