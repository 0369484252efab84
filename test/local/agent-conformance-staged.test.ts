// The same cases where a thread stages the memory, as it does with that of GPUs.
import { stagedConfigurations } from './support/agent-configurations.ts';
import { testConformance } from './support/agent-conformance.ts';

for (const configuration of stagedConfigurations) await testConformance(configuration);
