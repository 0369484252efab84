// NVIDIA GPUs, the driver's library, NVRTC, which compiles kernels at run time, and cuBLAS. Nothing is loaded.
import { countEqual } from '../../core/count-equal.ts';
import { driverVersionFile, parseDriverVersion } from '../../device/cuda/driver-version.ts';
import { findLibrary } from '../../native/library-search.ts';
import { findCudaLibrary } from '../../native/cuda-library-search.ts';
import type { Finding } from './finding.ts';
import type { MachineProbe } from './machine-probe.ts';

export function checkGpus(machine: MachineProbe): Finding {
  const name = 'NVIDIA GPUs';
  const models = machine.list('/proc/driver/nvidia/gpus').map((bus) => {
    const text = machine.readText(`/proc/driver/nvidia/gpus/${bus}/information`) ?? '';
    return /^Model:\s*(.+)$/m.exec(text)?.[1]?.trim() ?? 'unknown model';
  });
  const usable = machine.list('/dev').filter((file) => /^nvidia\d+$/.test(file)).length;
  if (models.length === 0 && usable === 0) {
    return { name, status: 'absent', value: 'none', advice: 'ranks run on the CPU; a GPU needs the NVIDIA driver' };
  }
  const version = parseDriverVersion(machine.readText(driverVersionFile) ?? '');
  const what = models.length === 0 ? `${usable}, models unknown` : countEqual(models);
  const value = version === undefined ? what : `${what}, driver ${version}`;
  if (usable >= models.length) return { name, status: 'ok', value };
  const advice = `only ${usable} of ${models.length} have a device file here: start the container with --gpus all`;
  return { name, status: 'short', value, advice };
}

export function checkCudaDriver(machine: MachineProbe): Finding {
  const name = 'CUDA driver (libcuda)';
  const path = findLibrary(machine, /^libcuda\.so\.1$/, ['/usr/local/nvidia/lib64', '/usr/lib/wsl/lib']);
  if (path !== undefined) return { name, status: 'ok', value: path };
  const advice = 'it comes with the NVIDIA driver; in a container it needs the NVIDIA container toolkit';
  return { name, status: 'absent', value: 'not found', advice };
}

export function checkNvrtc(machine: MachineProbe): Finding {
  const name = 'NVRTC';
  const path = findCudaLibrary(machine, 'nvrtc', machine.env['WEFTLINE_NVRTC']);
  if (path !== undefined) return { name, status: 'ok', value: path };
  const advice =
    'it compiles GPU kernels: install the CUDA toolkit and set CUDA_HOME, or "pip install nvidia-cuda-nvrtc" into the active environment';
  return { name, status: 'absent', value: 'not found', advice };
}

export function checkCublas(machine: MachineProbe): Finding {
  const name = 'cuBLAS';
  const path = findCudaLibrary(machine, 'cublas', machine.env['WEFTLINE_CUBLAS']);
  if (path !== undefined) return { name, status: 'ok', value: path };
  const advice =
    'weftline moe multiplies by a kernel of its own instead; the CUDA toolkit has it, or "pip install nvidia-cublas"';
  return { name, status: 'absent', value: 'not found', advice };
}
