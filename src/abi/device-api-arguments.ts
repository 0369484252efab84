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

/** Puts of a whole message by all blocks, each its part, again and again; then each block adds 1. */
export const benchDevicePutArguments = defineLayout('BenchDevicePutArguments', {
  request: 'ptr',
  signalRequest: 'ptr',
  bytes: 'u64',
  /** Bytes between the targets of messages that follow each other, which use `places` places in turn. */
  stride: 'u64',
  messages: 'u32',
  places: 'u32',
});

/** What the rounds of benchDevicePing send. */
export const benchPingKinds = { signal: 0, putWithSignal: 1, word: 2 } as const;

/** 8 bytes, a signal and a wait, there and back. */
export const benchDevicePingArguments = defineLayout('BenchDevicePingArguments', {
  request: 'ptr',
  signalRequest: 'ptr',
  waits: 'ptr',
  /** This side's counter, with a cell for words 16 bytes behind it, and where the peer's 8 bytes come. */
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
  /** One of benchPingKinds. */
  what: 'u32',
  /** 1: with Order::Relaxed. */
  isRelaxed: 'u32',
});

/** Signals as fast as they can be pushed, by the first lanes of every warp. */
export const benchDevicePushArguments = defineLayout('BenchDevicePushArguments', {
  request: 'ptr',
  count: 'u32',
  channels: 'u32',
  /** Of each warp that push, each for itself. */
  lanes: 'u32',
  isRelaxed: 'u32',
});
