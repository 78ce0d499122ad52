// SPDX-License-Identifier: BSD-2-Clause
// lwIP's blocks as other folders see them, for headers that only point at them.
#pragma once

struct vma_lwip_parameters;

namespace vma::tcp::lwip {

class Pcb;             // pcb.h
class Piece;           // piece.h
class ReceivedHeader;  // received_header.h
class Segment;         // segment.h
// Window, segment size and the like as lwIP reads them (port/lwipopts.h).
using Parameters = struct ::vma_lwip_parameters;

}  // namespace vma::tcp::lwip
