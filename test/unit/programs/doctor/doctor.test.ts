import assert from 'node:assert/strict';
import test from 'node:test';
import { examine, examineRdma, type Finding, type MachineProbe, thisMachine } from '#lib/programs/doctor/doctor.js';
import { doctorView, rdmaView } from '#lib/programs/cli/doctor-command.js';
import { viewText } from '#lib/programs/report/view.js';

const GIB = 2 ** 30;

const limits = `Limit                     Soft Limit           Hard Limit           Units
Max open files            4096                 8192                 files
Max locked memory         unlimited            unlimited            bytes
`;

/** A machine where nothing is missing: paths of files to their text; folders follow from the paths. */
const completeFiles: Readonly<Record<string, string>> = {
  '/proc/self/limits': limits,
  '/proc/self/mounts': 'tmpfs /dev/shm tmpfs rw,nosuid 0 0\n',
  '/sys/kernel/mm/transparent_hugepage/shmem_enabled': 'always within_size [advise] never deny force\n',
  '/proc/self/cgroup': '0::/system.slice/job\n',
  '/sys/fs/cgroup/system.slice/job/memory.max': 'max\n',
  '/sys/fs/cgroup/system.slice/job/cpu.max': 'max 100000\n',
  '/proc/sys/net/core/rmem_max': '67108864\n',
  '/proc/sys/net/core/wmem_max': '67108864\n',
  '/proc/sys/net/ipv4/udp_mem': '575802\t767736\t1151604\n',
  '/proc/driver/nvidia/version': 'NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build\n',
  '/proc/driver/nvidia/gpus/0000:01:00.0/information': 'Model: \t\t NVIDIA H200\nIRQ:   1\n',
  '/proc/driver/nvidia/gpus/0000:02:00.0/information': 'Model: \t\t NVIDIA H200\nIRQ:   2\n',
  '/dev/nvidia0': '',
  '/dev/nvidia1': '',
  '/dev/nvidiactl': '',
  '/dev/infiniband/uverbs0': '',
  '/usr/lib/x86_64-linux-gnu/libcuda.so.1': '',
  '/usr/local/cuda-13.0/targets/x86_64-linux/lib/libnvrtc.so.13': '',
  '/usr/local/cuda-13.0/targets/x86_64-linux/lib/libcublas.so.13': '',
  '/usr/local/cuda-13.0/targets/x86_64-linux/lib/libnvrtc-builtins.so.13.0': '',
  '/etc/ld.so.cache': 'glibc-ld.so.cache1.1\0libucp.so.0\0/opt/ucx/lib/libucp.so.0\0',
  '/opt/ucx/lib/libucp.so.0': '',
  '/opt/ucx/lib/ucx/libuct_ib.so.0': '',
  '/opt/ucx/lib/ucx/libuct_ib.so': '',
  '/usr/lib64/libibverbs.so.1': '',
  '/sys/class/net/eth0/speed': '400000\n',
  '/sys/class/net/eth0/mtu': '9000\n',
  '/sys/class/net/eth1/speed': '-1\n',
  '/sys/class/net/eth1/mtu': '1500\n',
  '/sys/devices/pci0000:80/0000:80:01.0/0000:03:00.0/numa_node': '1\n',
  '/sys/class/infiniband/mlx5_0/ports/1/state': '4: ACTIVE\n',
  '/sys/class/infiniband/mlx5_0/ports/1/rate': '400 Gb/sec (4X NDR)\n',
};

const interfaces = [
  { name: 'eth0', addresses: ['10.0.0.1'] },
  { name: 'eth1', addresses: ['10.0.1.1', 'fd00::1'] },
  { name: 'lo', addresses: ['127.0.0.1'] },
];

/** Each GPU has an interface behind its own switch. */
const places: Readonly<Record<string, string>> = {
  '/sys/bus/pci/devices/0000:01:00.0': '/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0',
  '/sys/bus/pci/devices/0000:02:00.0': '/sys/devices/pci0000:80/0000:80:01.0/0000:02:00.0',
  '/sys/class/net/eth0/device': '/sys/devices/pci0000:80/0000:80:01.0/0000:03:00.0',
  '/sys/class/net/eth1/device': '/sys/devices/pci0000:00/0000:00:01.0/0000:04:00.0',
};

function machine(
  files: Readonly<Record<string, string>> = completeFiles,
  other: Partial<MachineProbe> = {},
): MachineProbe {
  const paths = Object.keys(files);
  return {
    platform: 'linux',
    arch: 'x64',
    nodeVersion: '22.23.3',
    env: {},
    cores: { model: 'a processor', present: 16, usable: 16 },
    memoryBytes: 64 * GIB,
    interfaces,
    readText: (path) => files[path],
    exists: (path) => paths.some((file) => file === path || file.startsWith(`${path}/`)),
    list: (folder) => [
      ...new Set(
        paths
          .filter((file) => file.startsWith(`${folder}/`))
          .map((file) => file.slice(folder.length + 1).split('/')[0] as string),
      ),
    ],
    fileSystem: () => ({ totalBytes: 32 * GIB, freeBytes: 30 * GIB }),
    tryWebAssembly: () => undefined,
    tryNativeCalls: () => undefined,
    realPath: (path) => places[path],
    rdmaHardware: () => [],
    reachedGpus: () => [],
    ucxVersion: () => '1.18.0',
    ...other,
  };
}

function finding(name: string, probe: MachineProbe): Finding {
  const found = examine(probe).findings.find((row) => row.name === name);
  assert.ok(found, `no row "${name}"`);
  return found;
}

function hugePages(modes: string): Finding {
  const files = { ...completeFiles, '/sys/kernel/mm/transparent_hugepage/shmem_enabled': modes };
  return finding('huge pages of /dev/shm', machine(files));
}

function refuse(): never {
  throw new Error('refused');
}

function allowOneGib(pages: number): void {
  if (pages > 16_384) throw new RangeError('could not allocate memory');
}

function kindOf(files: Record<string, string>, env: Record<string, string> = {}): string {
  return finding('container', machine({ ...completeFiles, ...files }, { env })).value;
}

function without(...prefixes: string[]): Record<string, string> {
  return Object.fromEntries(
    Object.entries(completeFiles).filter(([path]) => !prefixes.some((prefix) => path.startsWith(prefix))),
  );
}

test('on a complete machine every row is ok and none gives advice', () => {
  const { findings, cpuReady } = examine(machine());
  assert.ok(cpuReady);
  assert.deepEqual(
    findings.filter((row) => row.status !== 'ok' || row.advice !== undefined),
    [],
  );
  assert.equal(new Set(findings.map((row) => row.name)).size, findings.length);
  assert.equal(finding('NVIDIA GPUs', machine()).value, '2 x NVIDIA H200, driver 580.82.07');
  assert.equal(finding('UCX (libucp)', machine()).value, '1.18.0, /opt/ucx/lib/libucp.so.0 (modules ib)');
  assert.equal(finding('RDMA devices', machine()).value, 'mlx5_0 (1: 400 Gb/sec (4X NDR))');
  assert.equal(finding('locked memory', machine()).value, 'unlimited');
});

test('on an empty machine every row that is not ok says what to do, and CPU ranks still run', () => {
  const { findings, cpuReady } = examine(machine({}));
  assert.ok(cpuReady);
  const absent = findings.filter((row) => row.status === 'absent').map((row) => row.name);
  assert.deepEqual(absent, [
    'huge pages of /dev/shm',
    'open files',
    'locked memory',
    'NVIDIA GPUs',
    'CUDA driver (libcuda)',
    'NVRTC',
    'cuBLAS',
    'RDMA devices',
    'verbs (libibverbs)',
    'UCX (libucp)',
    'UDP receive buffer',
    'UDP send buffer',
    'UDP memory, all sockets',
  ]);
  for (const row of findings) assert.ok(row.status === 'ok' || row.advice !== undefined, row.name);
});

test('huge pages of /dev/shm that are turned off say how to turn them on', () => {
  for (const mode of ['never', 'deny']) {
    const row = hugePages(`always within_size advise ${mode === 'deny' ? 'never [deny]' : '[never] deny'} force\n`);
    assert.deepEqual([row.status, row.value], ['short', mode]);
    assert.match(row.advice ?? '', /^echo advise > \/sys\/kernel\/mm\/transparent_hugepage\/shmem_enabled makes/);
  }
  assert.deepEqual([hugePages('[always] never deny').status, hugePages('[always] never deny').value], ['ok', 'always']);
});

test('an old Node.js, no /dev/shm, no WebAssembly or no native calls mean that CPU ranks cannot run', () => {
  const broken: readonly (readonly [string, Partial<MachineProbe>])[] = [
    ['Node.js', { nodeVersion: '20.18.3' }],
    ['Node.js', { nodeVersion: '18.20.0' }],
    ['shared memory (/dev/shm)', { fileSystem: () => undefined }],
    ['shared memory (/dev/shm)', { platform: 'darwin' }],
    ['WebAssembly', { tryWebAssembly: refuse }],
    ['native calls (koffi)', { tryNativeCalls: refuse }],
  ];
  for (const [name, other] of broken) {
    const { cpuReady, findings } = examine(machine(completeFiles, other));
    assert.equal(cpuReady, false, name);
    assert.deepEqual(
      findings.filter((row) => row.blocksCpu).map((row) => row.name),
      [name],
    );
  }
  assert.equal(finding('Node.js', machine(completeFiles, { nodeVersion: '20.19.0' })).status, 'ok');
});

test('a small /dev/shm says how many tokens fit, and how to raise it here or in a container', () => {
  const small = { fileSystem: () => ({ totalBytes: 64 << 20, freeBytes: 64 << 20 }) };
  const bare = finding('shared memory (/dev/shm)', machine(completeFiles, small));
  assert.equal(bare.status, 'short');
  assert.equal(bare.blocksCpu, undefined);
  assert.equal(bare.value, '64 MiB free of 64 MiB (tmpfs)');
  assert.match(bare.advice ?? '', /1\.8 GiB at worst, about 144 tokens per rank fit: mount -o remount/);
  const docker = finding('shared memory (/dev/shm)', machine({ ...completeFiles, '/.dockerenv': '' }, small));
  assert.match(docker.advice ?? '', /--shm-size/);
});

test('control groups of both versions limit memory and cores, the tightest one counts', () => {
  const v2 = {
    ...completeFiles,
    '/sys/fs/cgroup/system.slice/memory.max': `${GIB}\n`,
    '/sys/fs/cgroup/system.slice/job/cpu.max': '150000 100000\n',
  };
  assert.equal(finding('memory', machine(v2)).value, '64 GiB, the control group allows 1 GiB');
  assert.equal(finding('memory', machine(v2)).status, 'short');
  assert.equal(finding('cores', machine(v2)).value, '16 (a processor), the control group allows 1.5');
  assert.equal(finding('cores', machine(v2)).status, 'short');
  const v1 = {
    ...completeFiles,
    '/proc/self/cgroup': '4:memory:/batch/7\n3:cpu,cpuacct:/batch/7\n',
    '/sys/fs/cgroup/memory/batch/7/memory.limit_in_bytes': '9223372036854771712\n',
    '/sys/fs/cgroup/memory/batch/memory.limit_in_bytes': `${8 * GIB}\n`,
    '/sys/fs/cgroup/cpu/batch/7/cpu.cfs_quota_us': '-1\n',
    '/sys/fs/cgroup/cpu/batch/7/cpu.cfs_period_us': '100000\n',
  };
  assert.equal(finding('memory', machine(v1)).value, '64 GiB, the control group allows 8 GiB');
  assert.equal(finding('cores', machine(v1)).value, '16 (a processor)');
});

test('an affinity mask below four cores is short', () => {
  const row = finding('cores', machine(completeFiles, { cores: { model: 'p', present: 16, usable: 2 } }));
  assert.deepEqual([row.status, row.value], ['short', '16 (p), affinity allows 2']);
});

test('less address space than 4 GiB names the setting that goes with it', () => {
  const row = finding('WebAssembly', machine(completeFiles, { tryWebAssembly: allowOneGib }));
  assert.deepEqual([row.status, row.value, row.blocksCpu], ['short', 'SIMD, shared memory of 1024 MiB', undefined]);
  assert.match(row.advice ?? '', /WEFTLINE_ADDRESS_SPACE_MIB=1024/);
});

test('limits and UDP buffers below what is wanted are short', () => {
  const files = {
    ...completeFiles,
    '/proc/self/limits': limits.replace('4096', '256 ').replace('unlimited', '8388608  '),
    '/proc/sys/net/core/rmem_max': '212992\n',
    '/proc/sys/net/ipv4/udp_mem': '1000\t2000\t4096\n',
  };
  assert.deepEqual(
    ['open files', 'locked memory', 'UDP receive buffer', 'UDP send buffer', 'UDP memory, all sockets'].map((name) => {
      const { status, value } = finding(name, machine(files));
      return [status, value];
    }),
    [
      ['short', '256'],
      ['short', '8 MiB'],
      ['short', '208 KiB'],
      ['ok', '64 MiB'],
      ['short', '16 MiB'],
    ],
  );
});

test('GPUs without device files, and device files without /proc, are told apart', () => {
  const hidden = finding('NVIDIA GPUs', machine(without('/dev/nvidia1')));
  assert.equal(hidden.status, 'short');
  assert.match(hidden.advice ?? '', /1 of 2/);
  const closed = 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n';
  const older = machine({ ...completeFiles, '/proc/driver/nvidia/version': closed });
  assert.equal(finding('NVIDIA GPUs', older).value, '2 x NVIDIA H200, driver 535.129.03');
  const bare = finding('NVIDIA GPUs', machine(without('/proc/driver')));
  assert.deepEqual([bare.status, bare.value], ['ok', '2, models unknown']);
});

test('libraries are found in LD_LIBRARY_PATH first, the loader cache only counts while the file exists', () => {
  const files = { ...completeFiles, '/mine/libcuda.so.1': '', '/mine/libcuda.so': '' };
  const named = machine(files, { env: { LD_LIBRARY_PATH: '/empty::/mine' } });
  assert.equal(finding('CUDA driver (libcuda)', named).value, '/mine/libcuda.so.1');
  assert.equal(finding('UCX (libucp)', machine(without('/opt/ucx'))).status, 'absent');
  const unusable = machine(completeFiles, { ucxVersion: () => undefined });
  assert.equal(finding('UCX (libucp)', unusable).status, 'short');
  const down = machine({ ...completeFiles, '/sys/class/infiniband/mlx5_0/ports/1/state': '1: DOWN\n' });
  assert.match(finding('UCX (libucp)', down).value, /the backend ucx needs an active RDMA port/);
});

test('NVRTC is found in CUDA_HOME and in the packages of a Python environment', () => {
  const bare = without('/usr/local/cuda');
  const inToolkit = machine({ ...bare, '/tk/lib64/libnvrtc.so.12.9': '' }, { env: { CUDA_HOME: '/tk' } });
  assert.equal(finding('NVRTC', inToolkit).value, '/tk/lib64/libnvrtc.so.12.9');
  const wheel = '/venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12';
  assert.equal(finding('NVRTC', machine({ ...bare, [wheel]: '' }, { env: { VIRTUAL_ENV: '/venv' } })).value, wheel);
  assert.equal(finding('NVRTC', machine(bare)).status, 'absent');
});

test('an RDMA device without an active port, or without device files, is short', () => {
  const down = { ...completeFiles, '/sys/class/infiniband/mlx5_0/ports/1/state': '1: DOWN\n' };
  assert.deepEqual(
    [finding('RDMA devices', machine(down)).value, finding('RDMA devices', machine(down)).status],
    ['mlx5_0 (no active port)', 'short'],
  );
  assert.match(finding('RDMA devices', machine(without('/dev/infiniband'))).advice ?? '', /--device/);
});

test('each kind of container is named', () => {
  assert.equal(kindOf({}), 'none seen');
  assert.equal(kindOf({ '/.dockerenv': '' }), 'Docker');
  assert.equal(kindOf({ '/run/.containerenv': '' }), 'Podman');
  assert.equal(kindOf({ '/proc/1/cgroup': '0::/kubepods/pod1\n' }), 'kubepods');
  assert.equal(kindOf({}, { KUBERNETES_SERVICE_HOST: '10.0.0.1' }), 'Kubernetes');
  assert.equal(kindOf({}, { APPTAINER_CONTAINER: '/a.sif' }), 'Apptainer');
});

test('the probe of this machine never throws, and CPU ranks can run here', () => {
  const here = thisMachine();
  assert.equal(here.readText('/no/such/file'), undefined);
  assert.deepEqual(here.list('/no/such/folder'), []);
  assert.equal(here.fileSystem('/no/such/folder'), undefined);
  const examination = examine(here);
  assert.ok(examination.cpuReady, JSON.stringify(examination.findings.filter((row) => row.blocksCpu)));
  assert.match(viewText(doctorView(examination)), /CPU ranks can run here\.\n$/);
});

test('the report shows every row, its advice and the verdict', () => {
  const text = viewText(doctorView(examine(machine({}, { fileSystem: () => undefined }))));
  assert.match(text, /shared memory \(\/dev\/shm\)\s+│ absent │ no such folder/);
  assert.match(text, /What to do:\n(.*\n)*  NVRTC: it compiles GPU kernels/);
  assert.match(text, /CPU ranks cannot run here\.\n$/);
});

test('rails have a row each, and each GPU its nearest one', () => {
  const row = finding('network interfaces', machine());
  assert.deepEqual(row.value.split('\n'), [
    'eth0: 10.0.0.1, 400 Gbps, MTU 9000, PCI 0000:03:00.0, NUMA node 1',
    'eth1: 10.0.1.1, speed unknown, MTU 1500, PCI 0000:04:00.0',
    'GPU 0000:01:00.0: eth1 (same PCI switch, 2 hops)',
    'GPU 0000:02:00.0: eth0 (same PCI switch, 2 hops)',
  ]);
  const { rails } = examine(machine());
  assert.deepEqual(
    rails?.gpus.map(({ rail }) => rail),
    ['eth1', 'eth0'],
  );
});

test('a list of rails is looked up, and a wrong one says what this machine has', () => {
  const named = machine(completeFiles, { env: { WEFTLINE_TRANSPORT_RAILS: 'eth1' } });
  assert.match(finding('rails', named).value, /^eth1: [^\n]*\nGPU 0000:01:00.0: eth1 \(same PCI switch, 2 hops\)\nGPU/);
  const wrong = machine(completeFiles, { env: { WEFTLINE_TRANSPORT_RAILS: 'wlan0' } });
  assert.equal(finding('rails', wrong).status, 'short');
  assert.match(finding('rails', wrong).advice ?? '', /not "wlan0".*This host has eth0 \(10\.0\.0\.1\), eth1/);
  assert.equal(examine(wrong).rails, undefined);
  const alone = machine(completeFiles, { interfaces: interfaces.slice(2) });
  assert.equal(finding('network interfaces', alone).status, 'absent');
});

function reportOf(maxMrSize: number): string {
  const attributes = { maxMrSize, pageSizeCap: 4096, vendorId: 1 };
  return viewText(rdmaView({ devices: [{ name: 'mlx5_0', attributes, ports: [] }] } as never));
}

test('a device without a limit of its memory regions says so', () => {
  // As a number, 2^64 - 1 is 2^64.
  assert.match(reportOf(Number(2n ** 64n - 1n)), /max_mr_size +│ no limit/);
  assert.match(reportOf(2 ** 32), /max_mr_size +│ 0x100000000 /);
});

test('the report of RDMA says for each GPU how the chosen device reaches its memory, and why', () => {
  const attributes = { state: 'active', physState: 'link up', linkLayer: 'InfiniBand', gigabitsPerSecond: 400 };
  const gids = [{ index: 0, gid: 'fe80', type: 'InfiniBand' }];
  const device = { name: 'mlx5_0', attributes: {}, ports: [{ number: 1, attributes, gids }] };
  const facts = { isReachable: true, exportsDmabuf: true, ordersWrites: true };
  const gpus = [
    { gpu: '0000:01:00.0', facts },
    { gpu: '0000:02:00.0', facts: { ...facts, exportsDmabuf: false, ordersWrites: false } },
  ];
  const report = (files = completeFiles, env = {}): string => {
    const probe = machine(files, { env, rdmaHardware: () => [device as never], reachedGpus: () => gpus });
    return viewText(rdmaView(examineRdma(probe)));
  };
  const plain = report();
  assert.match(
    plain,
    /^Memory of GPU 0000:01:00\.0 by mlx5_0: dmabuf, because .* registers them; .* needs no flush, because this GPU shows it in order\.$/m,
  );
  assert.match(
    plain,
    /^Memory of GPU 0000:02:00\.0 by mlx5_0: pinned, because .*; and nvidia-peermem is not loaded .*\.$/m,
  );
  assert.match(
    report({ ...completeFiles, '/sys/module/nvidia_peermem/version': '580.95.05' }),
    /^Memory of GPU 0000:02:00\.0 by mlx5_0: peermem, because .*; nvidia-peermem is loaded; what arrives is flushed by a read/m,
  );
  assert.match(
    report(completeFiles, { WEFTLINE_RDMA_GPU_MEMORY: 'pinned' }),
    /^Memory of GPU 0000:01:00\.0 by mlx5_0: pinned, because the setting rdmaGpuMemory names it\.$/m,
  );
});
