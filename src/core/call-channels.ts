// Tracing channels of node:diagnostics_channel: collective calls and transfers tell those who listen, for APM tools. Free while nobody does.
import { tracingChannel, type TracingChannel } from 'node:diagnostics_channel';

/** What listeners are told of a collective call, at its begin and at its end. */
export interface CallContext {
  /** "EpBuffer", with its number among those of the same ranks where there are several. */
  readonly object: string;
  readonly call: string;
  /** Number among the object's calls, the same on all its ranks. */
  readonly number: number;
  /** World ranks that make it together. */
  readonly ranks: readonly number[];
  /** Why it failed. */
  error?: unknown;
}

/** What listeners are told of a transfer of an agent. */
export interface TransferContext {
  readonly agent: string;
  readonly peer: string;
  readonly operation: string;
  readonly backend: string;
  readonly bytes: number;
  /** Why it failed. */
  error?: unknown;
}

const epCalls = [
  'dispatch',
  'combine',
  'barrier',
  'preprocess',
  'getAgSplitsAndRecvOffsetForDispatch',
  'initOutputBuffer',
  'dispatchToken',
  'dispatchPostprocess',
  'combineInput',
  'hook of dispatch',
  'hook of combine',
  'connectRanks',
  'cutOver',
] as const;

const collectiveCalls = [
  'barrier',
  'broadcast',
  'reduce',
  'allGather',
  'reduceScatter',
  'allReduce',
  'allToAll',
  'allToAllv',
  'send',
  'recv',
  'groupEnd',
  'sparse allReduce',
  'serve',
  'register',
] as const;

/**
 * Names of all tracing channels: of node:diagnostics_channel's tracingChannel(). Those of calls tell a CallContext, that of
 * transfers a TransferContext.
 */
export const tracingChannelNames: readonly string[] = [
  ...epCalls.map((call) => channelName('ep', call)),
  ...collectiveCalls.map((call) => channelName('collective', call)),
  channelName('agent', 'transfer'),
];

const channels = new Map<string, TracingChannel<unknown, object>>();

/** `weftline:ep.dispatch`: by an object's kind and a call. */
export function callChannel(object: string, call: string): TracingChannel<unknown, object> {
  const isOfCollectives = object === 'Communicator' || object === 'SparseAllReduce';
  return channelOf(channelName(isOfCollectives ? 'collective' : 'ep', call));
}

export function transferChannel(): TracingChannel<unknown, object> {
  return channelOf(channelName('agent', 'transfer'));
}

function channelName(area: string, call: string): string {
  return `weftline:${area}.${call.replaceAll(' ', '-')}`;
}

function channelOf(name: string): TracingChannel<unknown, object> {
  const known = channels.get(name);
  if (known !== undefined) return known;
  const made = tracingChannel<unknown, object>(name);
  channels.set(name, made);
  return made;
}

/** Tells the begin of a call that is no promise. endChannelCall() must follow. */
export function beginChannelCall(channel: TracingChannel<unknown, object>, context: object): void {
  channel.start.publish(context);
  channel.end.publish(context);
}

/** `context.error` says why it failed, if it did. */
export function endChannelCall(
  channel: TracingChannel<unknown, object>,
  context: object & { readonly error?: unknown },
): void {
  if (context.error !== undefined) channel.error.publish(context);
  channel.asyncStart.publish(context);
  channel.asyncEnd.publish(context);
}
