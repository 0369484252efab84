// Ends of paths that an engine makes itself: how the thread that meets a peer asks it for them, and how it answers.
import { WeftlineError } from '../../core/errors.ts';
import type { EndMaker, EngineEnds } from '../io/packet-io.ts';
import type { EngineGroup } from './engine-group.ts';
import type { EndCalls } from './host-calls.ts';

/** As the user's thread sees it. */
export function engineEnds(group: EngineGroup, engine: number): EngineEnds {
  return {
    open: (plan) => group.call(engine, 'openEnds', plan),
    connect: (join) => group.call(engine, 'connectEnds', join),
    probe: (probe) => group.call(engine, 'probeEnds', probe),
    probed: (probe) => group.call(engine, 'probedEnds', probe),
    close: (ends) => group.call(engine, 'closeEnds', ends),
  };
}

/** The answers of the engine's thread. `loop` is asked at the first call. */
export function endCalls(loop: () => { readonly ends?: EndMaker }): EndCalls {
  const maker = (): EndMaker => {
    const { ends } = loop();
    if (ends === undefined) throw new WeftlineError('WL_INTERNAL', 'This engine makes no ends of paths');
    return ends;
  };
  return {
    openEnds: (plan) => maker().open(plan),
    connectEnds: (join) => maker().connect(join),
    probeEnds: (probe) => maker().probe(probe),
    probedEnds: (probe) => maker().probed(probe),
    closeEnds: (ends) => maker().close(ends),
  };
}
