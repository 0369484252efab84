// The report page of `weftline moe --all-layers`: by layer its time, and what its routing loads each rank with.
import type { MoeReport } from '../../../moe/moe-job.ts';
import { spread } from '../../../moe/moe-load.ts';
import { layersHeadline, layersVerdict } from '../../layers-report.ts';
import type { ReportPage } from '../report-page.ts';

/** At least one report, all of the same model on the same ranks. */
export function layersPage(reports: readonly MoeReport[]): ReportPage {
  const layers = reports.map(({ block }, index) => `layer ${block.model?.layer ?? index}`);
  return {
    title: `MoE blocks of a model on ${reports[0]!.ranks} ${reports[0]!.ranks === 1 ? 'rank' : 'ranks'}`,
    about: [...layersHeadline(reports), layersVerdict(reports)],
    sections: [
      {
        title: 'Time of each layer',
        note: 'All phases in one go: the slowest rank, median of the passes.',
        chart: {
          kind: 'bars',
          value: { label: 'ms' },
          bars: reports.map(({ forwardMs }, index) => ({ name: layers[index]!, series: 'time', value: forwardMs })),
        },
        table: { head: ['layer', 'ms'], rows: reports.map(({ forwardMs }, index) => [layers[index]!, forwardMs]) },
      },
      {
        title: 'Load of ranks in each layer',
        note: 'The rank whose experts compute most rows, over the mean of the ranks: all wait for it.',
        chart: {
          kind: 'bars',
          value: { label: 'most / mean' },
          bars: reports.map((report, index) => ({ name: layers[index]!, series: 'load', value: busiest(report) })),
        },
        table: {
          head: ['layer', 'most / mean', ...reports[0]!.load.ranks.map(({ rank }) => `rank ${rank}`)],
          rows: reports.map((report, index) => [
            layers[index]!,
            busiest(report),
            ...report.load.ranks.map(({ expertRows }) => expertRows),
          ]),
        },
      },
    ],
  };
}

function busiest({ load }: MoeReport): number {
  const { mean, most } = spread(load.ranks.map(({ expertRows }) => expertRows));
  return mean === 0 ? 0 : most.value / mean;
}
