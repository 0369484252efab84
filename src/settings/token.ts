// The token that peers prove to each other, as a program or its environment gives it.
import { invalidArgument } from '../core/errors.ts';

/** The option, else WEFTLINE_TOKEN; an empty string means that there is none. */
export function readToken(
  option: string | undefined,
  environment: Readonly<Record<string, string | undefined>> = process.env,
): string {
  if (option !== undefined && typeof option !== 'string') {
    throw invalidArgument('token', typeof option, 'a string, best of 32 random bytes in hexadecimal digits');
  }
  if (option !== undefined && option !== '') return option;
  return environment['WEFTLINE_TOKEN']?.trim() ?? '';
}
