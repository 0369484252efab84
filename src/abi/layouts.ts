// Every layout that a kernel reads, in one list for the generator.
import type { Layout } from './layout.ts';

export const layouts: readonly Layout[] = [];
