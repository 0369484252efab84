// What weftline says of its own work, for operators: off unless the setting `log` turns it on, by part and level. To stderr.
import { WeftlineError } from './errors.ts';
import { printable, quote } from './quote.ts';

/** A level shows its own lines and those of the levels after it in this list. */
const levels = ['debug', 'info', 'warn', 'off'] as const;
type LogLevel = Exclude<(typeof levels)[number], 'off'>;

const parts = ['agent', 'device', 'device-api', 'transport', 'world'] as const;
type LogPart = (typeof parts)[number];

const OFF = levels.indexOf('off');
/** The first level that is shown, by part. */
const shownFrom: Record<LogPart, number> = { agent: OFF, device: OFF, 'device-api': OFF, transport: OFF, world: OFF };

/**
 * "info" for all parts, "agent:debug,transport:info" for some, "warn,agent:debug,world:off" for both: later entries win.
 * Holds for this thread; an empty text changes nothing. Fails with WL_CONFIG.
 */
export function setLogLevels(text: string): void {
  const next = { ...shownFrom };
  for (const entry of text.split(',').map((word) => word.trim())) {
    if (entry === '') continue;
    const [first = '', second] = entry.split(':');
    const level = levels.findIndex((name) => name === (second ?? first));
    const shown = second === undefined ? parts : parts.filter((name) => name === first);
    if (level === -1 || shown.length === 0) {
      const expected = `${levels.join(', ')}, or one of them behind ${parts.join(':, ')}:`;
      const message = `Invalid setting log (WEFTLINE_LOG): expected ${expected}, got ${quote(entry)}`;
      throw new WeftlineError('WL_CONFIG', message, { details: { setting: 'log', value: entry, expected } });
    }
    for (const part of shown) next[part] = level;
  }
  Object.assign(shownFrom, next);
}

/** Spares lines whose text costs something to make. */
export function isLogged(part: LogPart, level: LogLevel): boolean {
  return levels.indexOf(level) >= shownFrom[part];
}

/** One line, if the part shows the level. Not for hot paths. */
export function log(part: LogPart, level: LogLevel, message: string): void {
  if (!isLogged(part, level)) return;
  const line = `${new Date().toISOString()} ${process.pid} ${part} ${level}: ${message}`;
  console.error(printable(line, Number.POSITIVE_INFINITY));
}
