// The cores that a rank has for itself, and what suits an engine where there are fewer of them than threads.
import { availableParallelism } from 'node:os';
import { WeftlineError } from '../../core/errors.ts';
import { quote } from '../../core/quote.ts';
import type { Settings } from '../../settings/settings.ts';
import { readEnvironment } from '../../world/environment.ts';

/** Engines that a transport has by itself: one for so many cores, but no more than this. */
const CORES_PER_ENGINE = 8;
const MAX_BY_CORES = 4;

/**
 * A packet that waits for a processor is delayed for as long as other threads may keep it, which says nothing about the
 * network. In µs: a few time slices of the scheduler.
 */
const CROWDED_TARGET_DELAY_US = 5000;

/** How many engines a transport with these settings has. `cores`: those that are this rank's share. */
export function engineCount(
  { transportThread, transportEngines }: Pick<Settings, 'transportThread' | 'transportEngines'>,
  cores: number = coresOfRank(),
): number {
  if (!transportThread) return 1;
  if (transportEngines > 0) return transportEngines;
  return Math.max(1, Math.min(MAX_BY_CORES, Math.floor(cores / CORES_PER_ENGINE)));
}

/**
 * True if the rank's own thread and its engines are more than its cores: they then wait for each other. So does an engine on
 * the rank's own thread, and on fewer cores than two other ranks run where it should answer.
 */
export function isCrowded(
  settings: Pick<Settings, 'transportThread' | 'transportEngines'>,
  cores: number = coresOfRank(),
): boolean {
  return cores < 1 + engineCount(settings, cores);
}

/** The settings with what was left open filled in for a rank with so many cores. */
export function suitCores(settings: Settings, cores: number = coresOfRank()): Settings {
  if (settings.transportTargetDelayUs !== 0 || !isCrowded(settings, cores)) return settings;
  return { ...settings, transportTargetDelayUs: CROWDED_TARGET_DELAY_US };
}

/** Cores that this process may use, shared with the other ranks of its host. */
function coresOfRank(): number {
  return availableParallelism() / ranksOfHost();
}

function ranksOfHost(): number {
  try {
    return readEnvironment().localSize ?? 1;
  } catch {
    // Variables of a launcher that make no sense are for join() to refuse; a transport needs none.
    return 1;
  }
}

const ITEM = /^(\d{1,6})(?:-(\d{1,6}))?$/;

/**
 * The core of engine number `engine`; undefined if none is set. `text` lists cores and ranges of them ("4,6,8-11"); engines
 * beyond the list take those that follow its last. Fails with WL_CONFIG for anything else.
 */
export function coreOf(text: string, engine: number): number | undefined {
  if (text.trim() === '') return undefined;
  const cores: number[] = [];
  for (const item of text.split(',')) {
    const [, first, last = first] = ITEM.exec(item.trim()) ?? [];
    if (first === undefined || Number(last) < Number(first)) throw wrong(text);
    for (let core = Number(first); core <= Number(last) && cores.length <= engine; core++) cores.push(core);
  }
  return cores[engine] ?? cores[cores.length - 1]! + engine - cores.length + 1;
}

function wrong(text: string): WeftlineError {
  const expected = 'numbers of cores and ranges of them, such as 4,6,8-11';
  return new WeftlineError(
    'WL_CONFIG',
    `Invalid setting transportPinCore (WEFTLINE_TRANSPORT_PIN): expected ${expected}, got ${quote(text)}`,
    { details: { setting: 'transportPinCore', value: text, expected } },
  );
}
