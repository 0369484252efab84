// A connection of an engine, as the engine's host keeps it.
import type { EncodedError } from '../../core/errors.ts';
import type { TransportConnection } from '../engine/transport-engine.ts';

export interface HostedConnection {
  readonly connection: TransportConnection;
  /** Why the connection was ended from here, in place of what the engine says of it. */
  reason: EncodedError | undefined;
  /** True once its paths are closed; its number stays taken until the user's side has ended it too. */
  isShut: boolean;
  /** The user's side has ended it: the number is free once no device reads memory of its requests. */
  isEnded: boolean;
}
