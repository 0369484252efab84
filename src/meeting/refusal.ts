// Why one side hangs up, as a frame that the other side may or may not be able to trust.
import { encodeError, errorCodes, type ErrorCode, type ErrorDetails, WeftlineError } from '../core/errors.ts';
import { printable } from '../core/quote.ts';
import { protocolError } from './frames.ts';

const MAX_TEXT = 600;
const MAX_DETAILS = 16;

/** What an error looks like in a frame: without stacks and causes, which are nobody else's business. */
export function encodeRefusal(error: unknown): Readonly<Record<string, unknown>> {
  const { code, message, details, rank } = encodeError(error);
  return { code, message: message.slice(0, 2000), details, ...(rank === undefined ? {} : { rank }) };
}

/** The error that a peer's refusal stands for. Whatever is in it: never throws, and WL_PROTOCOL if it is not one. */
export function decodeRefusal(value: unknown, peer: string): WeftlineError {
  return decodePeerError(value, `${peer} refused: `);
}

/** The same of an error that a peer tells in the course of a conversation. */
export function decodePeerError(value: unknown, prefix = '', mostText: number = MAX_TEXT): WeftlineError {
  if (typeof value !== 'object' || value === null) return protocolError('an error without a reason');
  const { code, message, details, rank } = value as Readonly<Record<string, unknown>>;
  const isKnown = typeof code === 'string' && Object.hasOwn(errorCodes, code);
  if (!isKnown || typeof message !== 'string') {
    const said = typeof message === 'string' ? `: ${printable(message, MAX_TEXT)}` : '';
    return protocolError(`an error of a kind that is not known here${said}`);
  }
  return new WeftlineError(code as ErrorCode, prefix + printable(message, mostText), {
    details: plainDetails(details),
    ...(typeof rank === 'number' && Number.isSafeInteger(rank) ? { rank } : {}),
  });
}

function plainDetails(details: unknown): ErrorDetails {
  if (typeof details !== 'object' || details === null || Array.isArray(details)) return {};
  const plain: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(details).slice(0, MAX_DETAILS)) {
    if (!/^\w{1,40}$/.test(name) || name === '__proto__') continue;
    if (typeof value === 'number' || typeof value === 'boolean') plain[name] = value;
    else if (typeof value === 'string') plain[name] = printable(value, MAX_TEXT);
    else if (Array.isArray(value) && value.every((item) => typeof item === 'number')) plain[name] = value;
  }
  return plain;
}
