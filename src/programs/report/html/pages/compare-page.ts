// The report page of `weftline compare`: ratios with their spread, those that changed most first.
import type { Comparison } from '../../../compare/compare-results.ts';
import { compareSummary, compareVerdict } from '../../compare-report.ts';
import type { ReportPage, ReportSection } from '../report-page.ts';
import { scaleFor } from './parts.ts';

/** A chart has so many figures, and the table all. */
const SHOWN = 60;

export function comparePage(files: readonly [string, string], comparison: Comparison): ReportPage {
  const own = comparison.figures.filter(({ isReference }) => !isReference);
  const references = comparison.figures.filter(({ isReference }) => isReference);
  return {
    title: 'Two results compared',
    about: [`A: ${files[0]}`, `B: ${files[1]}`, ...compareSummary(comparison)],
    sections: [...section('B to A', own), ...section('What was measured beside', references)],
  };
}

function section(title: string, figures: Comparison['figures']): ReportSection[] {
  if (figures.length === 0) return [];
  const changed = figures.toSorted((a, b) => Math.abs(Math.log(b.ratio)) - Math.abs(Math.log(a.ratio)));
  const shown = new Set(changed.slice(0, SHOWN));
  const ranges = figures
    .filter((figure) => shown.has(figure))
    .map(({ name, low, ratio, high, hasSpread }) => ({
      name,
      low: hasSpread ? low : ratio,
      middle: ratio,
      high: hasSpread && Number.isFinite(high) ? high : ratio,
    }));
  const left = figures.length - ranges.length;
  return [
    {
      title,
      note: `How many times as fast or as much, above 1 is better; bars are what the quartiles of both allow.${left > 0 ? ` The ${ranges.length} that changed most.` : ''}`,
      chart: {
        kind: 'ranges',
        value: { label: 'B to A', scale: scaleFor(ranges.flatMap(({ low, high }) => [low, high])) },
        ranges,
        rules: [{ value: 1, label: 'same' }],
      },
      table: {
        head: ['figure', 'unit', 'A', 'B', 'B to A', 'from', 'to', ''],
        rows: figures.map((figure) => {
          const { name, unit, first, second, ratio, low, high, hasSpread } = figure;
          return [
            name,
            unit,
            first,
            second,
            ratio,
            hasSpread ? low : '',
            hasSpread ? high : '',
            compareVerdict(figure),
          ];
        }),
      },
    },
  ];
}
