// fast-check with the seed of this run, so that the gate tests the same examples each time. Failures print seed and path.
import fc from 'fast-check';
import { seed } from './seed.ts';

fc.configureGlobal({ seed });

export default fc;
