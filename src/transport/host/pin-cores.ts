// Which core each engine's thread is pinned to.
import { WeftlineError } from '../../core/errors.ts';
import { quote } from '../../core/quote.ts';

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
