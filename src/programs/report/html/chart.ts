// What charts of a report are made of: data and labels, which the browser draws (browser/draw-charts.ts).

export interface Axis {
  /** The name of the axis, with its unit. */
  readonly label: string;
  readonly scale?: 'linear' | 'log';
}

/** A value to compare with. */
export interface Rule {
  readonly value: number;
  readonly label: string;
}

interface Charts {
  /** One bar for each name. */
  readonly bars: {
    readonly value: Axis;
    readonly bars: readonly { readonly name: string; readonly series: string; readonly value: number }[];
    readonly rules?: readonly Rule[];
  };
  /** Bars of things that have numbers from 0 on, such as experts; with several series one panel below the other. */
  readonly numbered: {
    readonly number: Axis;
    readonly value: Axis;
    readonly series: readonly { readonly name: string; readonly values: readonly number[] }[];
    readonly rules?: readonly Rule[];
  };
  readonly lines: {
    readonly x: Axis;
    readonly y: Axis;
    /** y is null where there is no value. */
    readonly lines: readonly {
      readonly name: string;
      readonly points: readonly (readonly [x: number, y: number | null])[];
    }[];
    readonly rules?: readonly Rule[];
  };
  /** Middles, and how far values spread about each. */
  readonly ranges: {
    readonly value: Axis;
    readonly ranges: readonly ({ readonly name: string } & Readonly<Record<'low' | 'middle' | 'high', number>>)[];
    readonly rules?: readonly Rule[];
  };
  readonly matrix: Readonly<Record<'row' | 'column' | 'value', string>> & {
    readonly names: readonly string[];
    /** [row][column] */
    readonly cells: readonly (readonly number[])[];
  };
  /** Spans on tracks. Spans within others are drawn below them. */
  readonly timeline: {
    readonly time: Axis;
    readonly tracks: readonly { readonly name: string; readonly lanes: number }[];
    readonly phases: readonly string[];
    readonly spans: readonly (readonly [track: number, lane: number, phase: number, begin: number, length: number])[];
  };
}

export type ChartOf<Kind extends keyof Charts> = { readonly kind: Kind } & Charts[Kind];

export type Chart = { [Kind in keyof Charts]: ChartOf<Kind> }[keyof Charts];
