// The record that a device wait leaves in mapped host memory when its deadline passes, instead of trapping.
import { defineLayout } from './layout.ts';

/** `state`: taken by compare-and-set on the device, written back to empty by the host. */
export const trapStates = { empty: 0, writing: 1, readable: 2 } as const;

/** Why a kernel left: a deadline passed, or a peer arrived in another call (expected and seen are then the calls). */
export const trapReasons = { timeout: 0, otherCall: 1 } as const;

/** Numbers of the kernels that wait; a name is what an error shows. */
export const trapKernels = {
  selfTest: 1,
  epPrepare: 2,
  epDispatch: 3,
  epCombine: 4,
  benchMeet: 5,
  benchCopy: 6,
  layerPrepare: 7,
  layerPlace: 8,
  layerDispatch: 9,
  layerCombine: 10,
} as const;

/**
 * One per device. `peer` is the rank that was waited for, `channel` what the kernel says it is; `expected` and `seen`
 * are the value that was waited for and the last one that was read.
 */
export const trapRecord = defineLayout(
  'TrapRecord',
  {
    state: 'u32',
    kernel: 'u32',
    rank: 'u32',
    peer: 'u32',
    channel: 'u32',
    /** One of trapReasons. */
    reason: 'u32',
    expected: 'u64',
    seen: 'u64',
    timeoutNs: 'u64',
  },
  64,
);
