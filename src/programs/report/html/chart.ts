// What charts of a report are made of: data and labels, which the browser draws (browser/draw-charts.ts).

export interface Axis {
  /** With its unit. */
  readonly label: string;
  readonly scale?: 'linear' | 'log';
}

/** A value to compare with. */
export interface Rule {
  readonly value: number;
  readonly label: string;
}

/** One bar for each name. */
export interface BarChart {
  readonly kind: 'bars';
  readonly value: Axis;
  readonly bars: readonly { readonly name: string; readonly series: string; readonly value: number }[];
  readonly rules?: readonly Rule[];
}

/** Bars of things that have numbers from 0 on, such as experts; with several series one panel below the other. */
export interface NumberedChart {
  readonly kind: 'numbered';
  readonly number: Axis;
  readonly value: Axis;
  readonly series: readonly { readonly name: string; readonly values: readonly number[] }[];
  readonly rules?: readonly Rule[];
}

export interface LineChart {
  readonly kind: 'lines';
  readonly x: Axis;
  readonly y: Axis;
  readonly lines: readonly ChartLine[];
  readonly rules?: readonly Rule[];
}

export interface ChartLine {
  readonly name: string;
  /** null where there is no value. */
  readonly points: readonly (readonly [x: number, y: number | null])[];
}

/** A middle, and how far values spread about it. */
export interface RangeChart {
  readonly kind: 'ranges';
  readonly value: Axis;
  readonly ranges: readonly {
    readonly name: string;
    readonly low: number;
    readonly middle: number;
    readonly high: number;
  }[];
  readonly rules?: readonly Rule[];
}

export interface MatrixChart {
  readonly kind: 'matrix';
  readonly row: string;
  readonly column: string;
  readonly value: string;
  readonly names: readonly string[];
  /** [row][column] */
  readonly cells: readonly (readonly number[])[];
}

/** Spans on tracks. Spans within others are drawn below them. */
export interface TimelineChart {
  readonly kind: 'timeline';
  readonly time: Axis;
  readonly tracks: readonly { readonly name: string; readonly lanes: number }[];
  readonly phases: readonly string[];
  /** Of each its track, its lane there, its phase, its begin and its length. */
  readonly spans: readonly (readonly [track: number, lane: number, phase: number, begin: number, length: number])[];
}

export type Chart = BarChart | NumberedChart | LineChart | RangeChart | MatrixChart | TimelineChart;
