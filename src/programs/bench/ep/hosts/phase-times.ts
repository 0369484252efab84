// How long this thread is between the begins and the ends of the trace points of one call.
import type { TracePoint, TraceSink } from '../../../../core/trace.ts';

/** In the order in which a call comes to them; those of the layer stand for the same parts of its calls. */
const phases = {
  'ep.dispatch.counts': 'counts',
  'layer.dispatch.counts': 'counts',
  'ep.dispatch.network': 'network',
  'ep.combine.network': 'network',
  'ep.dispatch.queue': 'queue',
  'ep.dispatch.local': 'local rows',
  'ep.dispatch.forward': 'forward',
  'ep.combine.host-sums': 'host sums',
  'ep.combine.own-sums': 'own sums',
  'ep.closing': 'closing',
  'layer.closing': 'closing',
} as const satisfies Partial<Record<TracePoint, string>>;

export type Phase = (typeof phases)[keyof typeof phases];

export const phaseNames: readonly Phase[] = [...new Set(Object.values(phases))];

export class PhaseTimes implements TraceSink {
  /** By phase, microseconds since the last reset. */
  readonly microseconds: Float64Array = new Float64Array(phaseNames.length);
  readonly #begins = new Float64Array(phaseNames.length);
  readonly #numbers = new Map<TracePoint, number>(
    Object.entries(phases).map(([point, phase]) => [point as TracePoint, phaseNames.indexOf(phase)]),
  );

  reset(): void {
    this.microseconds.fill(0);
  }

  begin(point: TracePoint): void {
    const phase = this.#numbers.get(point);
    if (phase !== undefined) this.#begins[phase] = performance.now();
  }

  end(point: TracePoint): void {
    const phase = this.#numbers.get(point);
    if (phase !== undefined) this.microseconds[phase]! += (performance.now() - this.#begins[phase]!) * 1000;
  }
}
