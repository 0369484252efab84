// What is known of an agent is of an earlier life of it.
import { WeftlineError } from '../core/errors.ts';

/** `known`: the incarnation of the metadata that this side has, `now` that of the agent. */
export function restarted(name: string, known: string, now: string): WeftlineError {
  return new WeftlineError(
    'WL_STALE',
    `Agent ${name} has restarted: its metadata here are of incarnation ${known}, it is ${now} now; load what its localMetadata() gives now (not the old ones again), then prepare its transfers anew`,
    { details: { peer: name, incarnation: known, now } },
  );
}
