// The record that a device wait leaves in mapped host memory when its deadline passes, instead of trapping.
import { defineLayout } from './layout.ts';

/** `state`: taken by compare-and-set on the device, written back to empty by the host. */
export const trapStates = { empty: 0, writing: 1, readable: 2 } as const;

/**
 * Why a kernel left: a deadline passed, a peer arrived in another call (expected and seen are the calls), the host gave up,
 * the host could not carry out a command, or a range ends outside of its memory (expected are the bytes there, seen is
 * the end; one of them is 0 for what is inside and not aligned), lanes of a warp did not come to a call that needs them
 * (expected and seen are masks of lanes), a post had flags that are not known (expected are those that are), or a peer
 * on another host gave up (seen is what its cell holds), or a low-latency call cannot go on, here or at the peer (expected is
 * one of lowLatencyFailures with the number of the call 8 bits higher, seen are its detail and, 32 bits higher, its extent).
 */
export const trapReasons = {
  timeout: 0,
  otherCall: 1,
  aborted: 2,
  commandFailed: 3,
  outOfRange: 4,
  missingLanes: 5,
  unknownFlags: 6,
  peerGaveUp: 7,
  callFailed: 8,
  peerFailed: 9,
} as const;

/** Value of `peer` for any peer that may add to the counter that was waited for. */
export const TRAP_ANY_PEER = 0xffff_ffff;

/** Numbers of the kernels that wait; a name is what an error shows. */
export const trapKernels = {
  selfTest: 1,
  epDispatch: 2,
  epCombine: 3,
  benchMeet: 4,
  benchCopy: 5,
  layerPrepare: 6,
  layerPlace: 7,
  layerDispatch: 8,
  layerCombine: 9,
  /** A kernel of a user, in a function of the device API. */
  deviceApi: 10,
  layerBarrier: 11,
  unpack: 12,
  pack: 13,
  lowLatencyDispatch: 14,
  lowLatencyCombine: 15,
  collectiveCopies: 16,
  collectiveReductions: 17,
  collectiveMessages: 18,
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
    /** Set by the host: waits end at once. */
    abort: 'u32',
  },
  64,
);
