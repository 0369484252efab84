// The arguments of the kernels in kernels/cuda/two-process.cu and kernels/cuda/bench-device-api.cu.
import { defineLayout } from './layout.ts';

/** The one who writes: pipeline puts of the same bytes, then one signal. */
export const twoProcessWriteArguments = defineLayout('TwoProcessWriteArguments', {
  /** u64 [requestCount]: request handles. At warp level with 32 of them each lane uses its own; otherwise the first. */
  requests: 'ptr',
  /** Handle of the request whose range holds the counter at its beginning. */
  signalRequest: 'u64',
  bytes: 'u64',
  add: 'u64',
  requestCount: 'u32',
  pipeline: 'u32',
});

/** The one who waits. */
export const twoProcessWaitArguments = defineLayout('TwoProcessWaitArguments', {
  counter: 'ptr',
  /** DeviceHostState. */
  waits: 'ptr',
  expected: 'u64',
});

/** Puts of a whole message by all blocks, each its share, again and again; then each block adds 1. */
export const benchDevicePutArguments = defineLayout('BenchDevicePutArguments', {
  request: 'ptr',
  signalRequest: 'ptr',
  bytes: 'u64',
  /** Bytes between the targets of messages that follow each other, which use `places` places in turn. */
  stride: 'u64',
  messages: 'u32',
  places: 'u32',
});

/** 8 bytes, a signal and a wait, there and back. */
export const benchDevicePingArguments = defineLayout('BenchDevicePingArguments', {
  request: 'ptr',
  signalRequest: 'ptr',
  waits: 'ptr',
  /** This side's counter, and where the peer's 8 bytes come. */
  counter: 'ptr',
  inbox: 'ptr',
  /** The local range of `request`: what is put. */
  outbox: 'ptr',
  /** u64 [2]: nanoseconds that all rounds took, rounds whose bytes were wrong. */
  result: 'ptr',
  rounds: 'u32',
  /** The counter's value before, and the round number that is put first. */
  first: 'u32',
  /** 1: begins; 0: answers. */
  begins: 'u32',
  /** 0: without a put, the signal alone. */
  hasPut: 'u32',
});

/** Signals as fast as they can be pushed, by every warp's first lane. */
export const benchDevicePushArguments = defineLayout('BenchDevicePushArguments', {
  request: 'ptr',
  count: 'u32',
  channels: 'u32',
});
