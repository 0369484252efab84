// One case of the expert-parallel bench on CPUs: what is timed, and how much it moves.
import type { BenchCase } from '../interleaved.ts';
import type { CaseTraffic } from './ep-results.ts';

export interface EpCase extends BenchCase, CaseTraffic {}
