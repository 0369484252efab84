// What the status numbers of the CUDA driver mean: which are no errors, which end the device for this process, and why.
import { WeftlineError } from '../../core/errors.ts';
import type { CudaCall, CudaDriver } from '../../native/cuda-driver.ts';

export const CUDA_SUCCESS = 0;
export const CUDA_ERROR_OUT_OF_MEMORY = 2;
export const CUDA_ERROR_NOT_READY = 600;
export const CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704;

/** After one of these every later call of the process fails too: only a new process can use the device again. */
const stickyStatuses: ReadonlySet<number> = new Set([214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721]);

const likelyMistakes: Readonly<Record<number, string>> = {
  1: 'an argument is out of range, or memory was freed before this call',
  2: 'other processes use the memory too (nvidia-smi shows them), or buffers are sized for more tokens than needed',
  3: 'the driver was not initialised',
  34: 'the stub library of the toolkit was loaded in place of the driver: remove the stubs folder from LD_LIBRARY_PATH',
  46: 'another process holds the device exclusively',
  100: 'no GPU is visible: see CUDA_VISIBLE_DEVICES, and --gpus of the container',
  101: 'there is no GPU of this number: see CUDA_VISIBLE_DEVICES',
  200: 'the kernel was compiled by an NVRTC that is newer than the driver, or the file is damaged',
  201: 'the context was released, or this thread never made it current',
  209: 'the kernel was compiled for another architecture: compile for that of this device',
  217: 'the two GPUs have no path to each other: NVLink or PCIe peer access is needed',
  222: 'the kernel was compiled by an NVRTC that is newer than the driver: update the driver',
  400: 'a stream, event or module was disposed before this call',
  500: 'the name is not in the module: an entry must be declared extern "C"',
  700: 'a kernel read or wrote memory that is not there: run with compute-sanitizer to find where',
  701: 'the block has more threads than the registers of the kernel allow, or too much shared memory',
  702: 'a kernel ran longer than the display driver allows',
  716: 'a kernel accessed an address that is not a multiple of the access size',
  718: 'the kernel jumped outside its code',
  719: 'a kernel failed, or memory of a peer process that has ended was accessed',
  720: 'a cooperative grid must fit the device at once: use fewer blocks or less shared memory',
  801: 'this device or driver lacks the feature',
  802: 'the fabric of the GPUs is not up: see nvidia-fabricmanager',
  803: 'the driver library and the kernel module have different versions: restart after the driver update',
  804: 'the compatibility library in front does not support this GPU: remove it from LD_LIBRARY_PATH',
  900: 'a wait, a query or an allocation cannot be part of a graph that is being recorded',
  901: 'an operation that cannot be part of a graph was enqueued while it was recorded',
  904: 'another stream was drawn into the recording, and device.stream does not wait for its end',
  912: 'the device cannot run clusters of this size',
};

export function isSticky(status: number): boolean {
  return stickyStatuses.has(status);
}

interface CudaFailure {
  readonly call: CudaCall;
  readonly status: number;
  /** What the call was about: "loading kernel x.cu", "1.5 GiB". */
  readonly subject?: string;
  readonly device: number;
  /** The kernel that was launched last, since failures of kernels surface at later calls. */
  readonly lastLaunch?: string;
}

/** WL_CUDA with the call, the status and the likely mistake. */
export function cudaError(driver: CudaDriver, failure: CudaFailure): WeftlineError {
  const { call, status, subject, device, lastLaunch } = failure;
  const name = statusName(driver, status);
  const sticky = isSticky(status);
  const mistake = likelyMistakes[status];
  const about = subject === undefined ? '' : ` (${subject})`;
  const blame = sticky && lastLaunch ? `; the last kernel launched was ${lastLaunch}` : '';
  const end = sticky ? '; the device is lost to this process, which must be started again' : '';
  return new WeftlineError(
    'WL_CUDA',
    `${call}${about} failed on GPU ${device} with ${name} (${status})${mistake === undefined ? '' : `: ${mistake}`}${blame}${end}`,
    { details: { ...failure, name, sticky } },
  );
}

/** The driver's own name of a status. Works on a lost device too. */
function statusName(driver: CudaDriver, status: number): string {
  const name: [string | null] = [null];
  return driver.cuGetErrorName(status, name) === CUDA_SUCCESS && name[0] !== null ? name[0] : 'an unknown status';
}
