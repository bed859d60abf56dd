/* curl_pair.h - the pairs of descriptors through which libcurl wakes itself, kept from the programs the host starts.
 *
 * Every multi handle has such a pair, and every look-up of a name. Before libcurl took eventfds for them (8.11, and only
 * where there are any) it opened sockets or pipes without CLOEXEC, and it tells their numbers to nobody; all programs that
 * the host starts meanwhile would inherit them. So they are found, and given CLOEXEC. The reading end of a multi handle's
 * pair is what turns readable when libcurl is told to wake, that of a look-up's pair is what libcurl waits for, and the
 * other end is the next one made, together with it. A descriptor of the host's would have to look the same in all of this.
 * A program that is started between the making and the finding, some microseconds, still inherits them.
 *
 * Threads: the one that uses the multi handle.
 */
#ifndef RAT_DELIVER_CURL_PAIR_H
#define RAT_DELIVER_CURL_PAIR_H

#include <stdbool.h>

#include "deliver/curl_library.h"

#ifdef RAT_HAS_CURL
/* The lowest free descriptor; before multi_init. */
int rat_curl_pair_lowest(void);
/* Of a new multi handle. False: there is none that a program would inherit, or it was not found. */
bool rat_curl_pair_of_multi(CURLM *multi, int from, int pair[2]);
/* Of the look-up that has just begun, if it has one. */
void rat_curl_pair_of_look_up(CURLM *multi);
#endif

#endif
