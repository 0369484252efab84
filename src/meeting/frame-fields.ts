// Reads fields of a frame that a peer sent. Each fails with WL_PROTOCOL.
import { quote } from '../core/quote.ts';
import { protocolError } from './frames.ts';

type Frame = Readonly<Record<string, unknown>>;

export function textField(frame: Frame, field: string): string {
  const value = frame[field];
  if (typeof value === 'string') return value;
  throw protocolError(`a greeting without ${field}`);
}

/** From 0 to `most`. */
export function integerField(frame: Frame, field: string, most: number): number {
  const value = frame[field];
  if (typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= most) return value;
  throw protocolError(`a greeting whose ${field} is ${value === undefined ? 'missing' : quote(value, 40)}`);
}
